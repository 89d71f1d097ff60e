"""A tensor that is nothing but what DLPack says of it: for memory that no library at hand has a tensor for."""

from __future__ import annotations

import ctypes
import math

_DLPACK_TYPE = {"float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "int64": (0, 64), "int32": (0, 32)}
CUDA, ONE_API = 2, 14


class TensorAt:
    """Contiguous, at `address` on device 0 of a DLPack device type."""

    class Tensor(ctypes.Structure):
        _fields_ = (
            ("data", ctypes.c_void_p),
            ("device", ctypes.c_int32 * 2),
            ("ndim", ctypes.c_int32),
            ("dtype", ctypes.c_uint8 * 4),
            ("dims", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.c_void_p),
            ("byte_offset", ctypes.c_uint64),
        )

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str, device_type: int) -> None:
        self.shape, self.dtype = shape, dtype
        code, bits = _DLPACK_TYPE[dtype]
        self.nbytes = math.prod(shape) * bits // 8
        self._dims = (ctypes.c_int64 * len(shape))(*shape)
        self._tensor = self.Tensor(address, (device_type, 0), len(shape), (code, bits, 1, 0), self._dims, None, 0)

    def __dlpack__(self) -> object:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._tensor), b"dltensor", None)
