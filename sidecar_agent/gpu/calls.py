"""Calling NVML through the `pynvml` module, with errors that can be classified.

The module is handed in (see `nvml.load_bindings`), so that nothing here needs a GPU or the package.
"""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any

from sidecar_agent.gpu.status import NvmlStatus, NvmlStatusError


class NvmlCalls:
    """Calls by name; a function that the bindings or the driver lack answers FUNCTION_NOT_FOUND."""

    def __init__(self, bindings: ModuleType) -> None:
        self._bindings = bindings

    def constant(self, name: str) -> Any:
        """Return a constant of the bindings."""
        return getattr(self._bindings, name)

    def call(self, name: str, *args: Any, **named: Any) -> Any:
        """Call a function of the bindings.

        Raises:
            NvmlStatusError: The driver did not answer success.
        """
        function = getattr(self._bindings, name, None)
        if function is None:
            raise NvmlStatusError(NvmlStatus.FUNCTION_NOT_FOUND, name)
        try:
            return function(*args, **named)
        except self._bindings.NVMLError as error:
            # Never compared with == and never a key: pynvml's errors are unhashable, and comparing
            # one with an error of another type raises AttributeError.
            raise NvmlStatusError(int(error.value), name) from None
        except UnicodeDecodeError:
            # The bindings decode every text the driver returns; a broken name must not cost the GPU.
            raise NvmlStatusError(NvmlStatus.UNKNOWN, name) from None


def address_of(handle: Any) -> int:
    """Return where a device handle points: what tells handles of one session apart."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
