/* The protocol of csrc/device/lamport.hpp, step by step, for spin. check.py writes a short file that defines the
 * configuration and the mutant, then includes this one.
 *
 *   RANKS, GROUPS   2 or 3 ranks, with at most GROUPS work-groups each
 *   WORDS           32-bit words in a packet, 1 or 2
 *   SLOT, SLICE     packets that a slot of a one-shot, and of a two-shot, can hold
 *   CALLS, PLAN     the calls to run, or
 *   CALLS 0, MENU   any sequence, of any length, of the calls of a menu on any grids
 *   SAME_GRID       in such a sequence all ranks use the same grid
 *   LAZY            a store lands when it is polled for, not at any moment in between
 *
 * A work-group is one thread of control here. That covers work-items too: between enter and the end of the kernel
 * they share nothing but the ticket, which a target may draw for any part of a work-group that enters as one.
 *
 * Stores to a peer travel through `fly`, a word at a time, and land in any order. A restore waits in `held` until
 * the work-group's fence or the end of its kernel, the latest that the header permits.
 *
 * Reductions, none of which hides a behaviour:
 *  - All stores of a publish are issued in one step: issuing later is covered by landing later.
 *  - A store must find its word EMPTY when it is issued, since landing at once is one of its futures.
 *  - A packet's words are awaited together: a word that has arrived stays until this same work-group restores it.
 *  - A restore is performed as late as possible: sooner would only make room for a store sooner.
 *  - The last group to leave advances the epoch, not the last to sign: once all have signed nobody reads it before
 *    the kernel has ended.
 *  - LAZY: nothing but the poll can tell a store under way from one that has landed.
 *  - Values tell apart the last WINDOW calls; ranks are never more than one call apart (asserted).
 */
#define EMPTY 0

#ifdef ONE_GENERATION
#define GENERATIONS 1
#else
#define GENERATIONS 2
#endif
#if CALLS > 0
#define WINDOW (CALLS + 1) /* the last one tells every rank to stop */
#else
#define WINDOW 4
#endif

#define MAX_CHUNKS 3
#if SLOT > 2 * SLICE
#define PLACES (RANKS * SLOT)
#else
#define PLACES (2 * RANKS * SLICE)
#endif
#if SLOT > RANKS * SLICE
#define CHUNK SLOT
#else
#define CHUNK (RANKS * SLICE)
#endif
#define RANK_WORDS (GENERATIONS * PLACES * WORDS)
#define ALL_WORDS (RANKS * RANK_WORDS)

/* A value names its call, chunk, source (RANKS: the reduction of all), packet and word. */
#define VALUE(source, q) (1 + (((k * MAX_CHUNKS + c) * (RANKS + 1) + (source)) * CHUNK + (q)) * WORDS + w)
#if WINDOW * MAX_CHUNKS * (RANKS + 1) * CHUNK * WORDS < 256
#define value byte
#else
#define value short
#endif

value mem[ALL_WORDS]; /* what the owner would read */
value fly[ALL_WORDS]; /* a peer's store on its way there */
byte held[ALL_WORDS]; /* 1 + the work-group whose restore of it is not performed yet */

byte ticket[RANKS];
#ifdef EPOCH_PER_GROUP
byte epoch[RANKS * GROUPS];
#define EPOCH epoch[me * GROUPS + g]
#else
byte epoch[RANKS]; /* modulo GENERATIONS: no more of it is used */
#define EPOCH epoch[me]
#endif

#if defined(EPOCH_PER_GROUP)
#define ADVANCES true
#elif defined(EARLY_ADVANCE)
#define ADVANCES (running[me] == GRID(me))
#else
#define ADVANCES (running[me] == 1)
#endif
#ifdef ADVANCE_BY_ONE
#define ADVANCE 1
#else
#define ADVANCE chunks
#endif

/* Calls and queues: what the host has issued, and how far each rank is. Two calls are alive at most. */
mtype = { ONE_SHOT, TWO_SHOT, STOP };
mtype kind[2];
byte size[2];
byte grid[2 * RANKS];
byte issued;          /* calls, modulo WINDOW */
byte kernel[RANKS];   /* the call this rank runs */
byte running[RANKS];  /* work-groups that have not left it */
bool go[RANKS * GROUPS];
byte stopped;

#define KIND kind[k % 2]
#define SIZE size[k % 2]
#define GRID(rank) grid[(k % 2) * RANKS + (rank)]
#define CAPACITY (KIND == ONE_SHOT -> SLOT : RANKS * SLICE)
#define CHUNKS ((SIZE + CAPACITY - 1) / CAPACITY)
#define SLOTS_IN_CHUNK (KIND == ONE_SHOT -> 1 : RANKS) /* parts of the tensor that travel apart */
#define PER_SLOT(packets) (((packets) + SLOTS_IN_CHUNK - 1) / SLOTS_IN_CHUNK)
#ifdef RAGGED_CHUNKS
#define LENGTH PER_SLOT((c + 1) * CAPACITY <= SIZE -> CAPACITY : SIZE - c * CAPACITY)
#else
/* All chunks of a call alike, the last one padded: a work-group with nothing to do in the last chunk would leave
 * its peers without proof that it is done with the chunk before, whose generation the next call writes. */
#define LENGTH PER_SLOT((SIZE + CHUNKS - 1) / CHUNKS)
#endif

#define WHO me, g, k, c /* who acts, in the story that check.py --trace tells */

/* Scratch of single steps, not part of the state. */
hidden byte i, s, w;
hidden short a;

/* A step deals with packet p of a chunk in one of three ways (p within its slice in a two-shot). */
#define SLOTS 0
#define SCATTER 1
#define GATHER 2
#define PLACE(s) (stage == SLOTS -> (s) * SLOT + p : ((stage == GATHER -> RANKS : 0) + (s)) * SLICE + p)
#define AT(rank, place) ((((rank) * GENERATIONS + (e + c) % GENERATIONS) * PLACES + (place)) * WORDS)
#define EXPECTED(s) (stage == SLOTS -> VALUE(s, p) : \
                     (stage == SCATTER -> VALUE(s, me * length + p) : VALUE(RANKS, s * length + p)))

#ifdef LAZY
#define FULL(word) ((mem[word] != EMPTY || fly[word] != EMPTY) && held[word] == 0)
#else
#define FULL(word) (mem[word] != EMPTY && held[word] == 0)
#endif
#ifdef FIRST_WORD_ONLY
#define ARRIVED(s) (s == me || FULL(AT(me, PLACE(s))))
#else
#define ARRIVED(s) (s == me || (FULL(AT(me, PLACE(s))) && FULL(AT(me, PLACE(s)) + WORDS - 1)))
#endif
#if RANKS == 3
#define ALL_ARRIVED (ARRIVED(0) && ARRIVED(1) && ARRIVED(2))
#else
#define ALL_ARRIVED (ARRIVED(0) && ARRIVED(1))
#endif

inline land(word) {
  assert(mem[word] == EMPTY);
  mem[word] = fly[word];
  fly[word] = EMPTY
}

inline publish(source, q) { /* to rank s, where this rank's packet p goes */
  printf("rank %d group %d call %d chunk %d: publish packet %d to rank %d\n", WHO, q, s);
  for (w : 0 .. WORDS - 1) {
    a = AT(s, PLACE(me)) + w;
    assert(mem[a] == EMPTY && fly[a] == EMPTY); /* re-armed before a peer writes it */
    fly[a] = VALUE(source, q)
  }
}

inline publish_chunk() {
  p = g;
  do
  :: p < length ->
     for (s : 0 .. RANKS - 1) {
       if
       :: s != me && stage == SLOTS -> publish(me, p)
       :: s != me && stage == SCATTER -> publish(me, s * length + p)
       :: else
       fi
     };
     p = p + GRID(me)
  :: else -> break
  od;
  p = g
}

inline accept() {
  printf("rank %d group %d call %d chunk %d: poll and restore packet %d, way %d\n", WHO, p, stage);
  for (s : 0 .. RANKS - 1) {
    if
    :: s != me ->
       for (w : 0 .. WORDS - 1) {
         a = AT(me, PLACE(s)) + w;
#ifdef LAZY
         if
         :: mem[a] == EMPTY -> land(a)
         :: else
         fi;
#endif
         assert(mem[a] == EXPECTED(s)) /* neither stale, nor torn, nor meant for another */
       }
    :: else
    fi
  }
}

inline restore() {
  for (s : 0 .. RANKS - 1) {
    if
    :: s != me ->
       for (w : 0 .. WORDS - 1) { held[AT(me, PLACE(s)) + w] = g + 1 }
    :: else
    fi
  }
}

inline publish_result() {
  stage = GATHER;
  for (s : 0 .. RANKS - 1) {
    if
    :: s != me -> publish(RANKS, me * length + p)
    :: else
    fi
  }
  stage = SCATTER
}

inline perform_restores(everyone) {
  for (a : me * RANK_WORDS .. (me + 1) * RANK_WORDS - 1) {
    if
    :: held[a] == g + 1 || held[a] != 0 && everyone -> held[a] = 0; mem[a] = EMPTY
    :: else
    fi
  }
}

inline issue(what, packets, g0, g1, g2) {
  KIND = what;
  SIZE = packets;
  GRID(0) = g0;
  GRID(1) = g1;
#if RANKS == 3
  GRID(2) = g2
#endif
}

inline any_grid(rank) {
  GRID(rank) = 1;
  do
  :: GRID(rank) < GROUPS -> GRID(rank)++
  :: break
  od
}

/* A call of the menu on any grids, or the end. */
inline any_call() {
  issue(STOP, 0, 0, 0, 0);
  if
  :: true
  MENU
  fi;
  if
  :: KIND == STOP
  :: else ->
     any_grid(0);
#ifdef SAME_GRID
     GRID(1) = GRID(0)
#else
     any_grid(1)
#endif
#if RANKS == 3
#ifdef SAME_GRID
     ; GRID(2) = GRID(0)
#else
     ; any_grid(2)
#endif
#endif
  fi
}

/* The next kernel of the in-order queue. Whichever rank gets to a call first makes the host decide it. */
inline launch() {
  k = kernel[me];
  if
  :: k == issued ->
#if CALLS > 0
     if
     PLAN
     :: k == CALLS -> issue(STOP, 0, 0, 0, 0)
     fi;
#else
     any_call();
#endif
     printf("call %d: %d-shot, %d packets, %d and %d groups on ranks 0 and 1\n",
            k, (KIND == TWO_SHOT -> 2 : 1), SIZE, GRID(0), GRID(1));
     assert(CHUNKS <= MAX_CHUNKS);
     issued = (issued + 1) % WINDOW
  :: else -> assert((k + 1) % WINDOW == issued)
  fi;
  if
  :: KIND == STOP -> stopped++
  :: else ->
     running[me] = GRID(me);
     d_step {
       for (i : 0 .. GRID(me) - 1) { go[me * GROUPS + i] = true }
     }
  fi;
  k = 0
}

proctype group(byte me; byte g) {
  byte k, e, c, p, chunks, length, stage;
  bool published;

end_idle:
  do
  :: d_step {
       go[me * GROUPS + g] ->
       go[me * GROUPS + g] = false;
       k = kernel[me];
       chunks = CHUNKS;
       e = EPOCH; /* step: enter */
       printf("rank %d group %d call %d: enter, epoch %d\n", me, g, k, e)
     }
     do
     :: c == chunks -> break
     :: d_step {
          c < chunks && !published ->
          length = LENGTH;
          stage = (KIND == ONE_SHOT -> SLOTS : SCATTER);
#ifdef POLL_BEFORE_PUBLISH
          p = g;
#else
          publish_chunk(); /* step: publish */
#endif
          if
          :: c == 0 -> ticket[me]++ /* step: sign */
          :: else
          fi;
          published = true
        }
     :: d_step {
          published && p < length && ALL_ARRIVED -> /* step: poll */
          accept();
#ifndef NO_RESTORE
          restore(); /* step: restore */
#endif
          if
          :: stage == SCATTER -> publish_result()
          :: else
          fi;
          p = p + GRID(me)
        }
     :: d_step {
          published && p >= length ->
          if
          :: stage == SCATTER -> stage = GATHER; p = g
          :: else ->
#ifdef POLL_BEFORE_PUBLISH
             publish_chunk();
#endif
#ifndef NO_FENCE
             perform_restores(false); /* step: fence */
#endif
             published = false;
             c++
          fi
        }
     od;
     atomic {
       printf("rank %d group %d call %d: leave\n", me, g, k);
       if
       :: ADVANCES -> EPOCH = (e + ADVANCE) % GENERATIONS /* step: advance */
       :: else
       fi;
       assert(running[me] > 0);
       running[me]--;
       e = 0; c = 0; p = 0; chunks = 0; length = 0; stage = 0;
       if
       :: running[me] == 0 ->
          d_step { assert(ticket[me] == GRID(me)); ticket[me] = 0; perform_restores(true) };
          kernel[me] = (k + 1) % WINDOW;
          launch()
       :: else -> k = 0
       fi
     }
  od
}

#ifndef LAZY
#define LAND1(x) :: d_step { fly[x] != EMPTY -> land(x) }
#define LAND4(x) LAND1(x) LAND1(x + 1) LAND1(x + 2) LAND1(x + 3)
#define LAND16(x) LAND4(x) LAND4(x + 4) LAND4(x + 8) LAND4(x + 12)

/* Any store under way may land next. */
active proctype fabric() {
end_idle:
  do
#if ALL_WORDS == 16
  LAND16(0)
#elif ALL_WORDS == 32
  LAND16(0) LAND16(16)
#elif ALL_WORDS == 36
  LAND16(0) LAND16(16) LAND4(32)
#elif ALL_WORDS == 64
  LAND16(0) LAND16(16) LAND16(32) LAND16(48)
#else
#error "one LAND for every word"
#endif
  od
}
#endif

init {
  byte me, g, k;
  atomic {
    for (me : 0 .. RANKS - 1) {
      for (g : 0 .. GROUPS - 1) { run group(me, g) };
      g = 0;
      launch()
    };
    me = 0
  };
  d_step {
    stopped == RANKS -> /* nothing lost, nothing left over */
    for (a : 0 .. ALL_WORDS - 1) { assert(mem[a] == EMPTY && fly[a] == EMPTY && held[a] == 0) }
  }
}
