#include "csrc/binding/all_reduce_callable.hpp"

#include <structmember.h>  // T_PYSSIZET: its Py_ spelling needs Python 3.12

#include <cstddef>
#include <cstring>
#include <exception>

#include "csrc/binding/errors.hpp"

namespace nb = nanobind;

namespace lamport {
namespace {

struct AllReduce {
  PyObject ob_base;
  vectorcallfunc vectorcall;
  void* engine;
  bool (*reduce)(void*, nb::handle, nb::handle);
  PyObject* owner;
  PyObject* empty_like;
  PyObject* library;
};

PyObject* usage() {
  PyErr_SetString(PyExc_TypeError, "all_reduce(x, out=None)");
  return nullptr;
}

/// C++ exceptions must not leave through the interpreter.
bool reduce(AllReduce* self, PyObject* x, PyObject* out, bool& done) {
  try {
    done = self->reduce(self->engine, x, out);
    return true;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const Error& error) {
    set_error(error);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return false;
}

PyObject* call(PyObject* callable, PyObject* const* args, size_t flagged, PyObject* names) {
  auto* self = reinterpret_cast<AllReduce*>(callable);
  const Py_ssize_t positional = PyVectorcall_NARGS(flagged);
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  if (positional < 1 || positional + named > 2) return usage();
  if (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "out") != 0) return usage();
  PyObject* x = args[0];
  PyObject* out = positional + named == 2 && args[1] != Py_None ? Py_NewRef(args[1])
                                                                : PyObject_CallOneArg(self->empty_like, x);
  if (out == nullptr) return nullptr;
  bool done = false;
  bool ok = reduce(self, x, out, done);
  if (ok && !done) {
    PyObject* pair[] = {x, out};
    PyObject* result = PyObject_Vectorcall(self->library, pair, 2, nullptr);
    ok = result != nullptr;
    Py_XDECREF(result);
  }
  if (ok) return out;
  Py_DECREF(out);
  return nullptr;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<AllReduce*>(object);
  Py_VISIT(self->owner);
  Py_VISIT(self->empty_like);
  Py_VISIT(self->library);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

int clear(PyObject* object) {
  auto* self = reinterpret_cast<AllReduce*>(object);
  Py_CLEAR(self->owner);
  Py_CLEAR(self->empty_like);
  Py_CLEAR(self->library);
  return 0;
}

void dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear(object);
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyTypeObject* all_reduce_type() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(AllReduce, vectorcall), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                                {Py_tp_members, members},
                                {0, nullptr}};
  static PyType_Spec spec = {"lamport_xpu.AllReduce", sizeof(AllReduce), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC, slots};
  static auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (type == nullptr) throw nb::python_error();
  return type;
}

}  // namespace

nb::object make_all_reduce(nb::object engine, bool (*reduce)(void*, nb::handle, nb::handle),
                           nb::object empty_like, nb::object library) {
  PyTypeObject* type = all_reduce_type();
  auto* self = reinterpret_cast<AllReduce*>(type->tp_alloc(type, 0));
  if (self == nullptr) throw nb::python_error();
  self->vectorcall = call;
  self->engine = nb::inst_ptr<void>(engine);
  self->reduce = reduce;
  self->owner = engine.release().ptr();
  self->empty_like = empty_like.release().ptr();
  self->library = library.release().ptr();
  return nb::steal(reinterpret_cast<PyObject*>(self));
}

}  // namespace lamport
