"""Errors that reach a user. Every message names the field, file or tensor, and the cure."""


class VflashError(Exception):
    """Root of what Vflash raises on purpose."""


class ContractError(VflashError, ValueError):
    """The caller asked for something that cannot be done; nothing ran and the pipeline stays healthy."""


class BusyError(ContractError):
    """A request is running already: one pipeline runs one request at a time."""


class ClosedError(ContractError):
    """The pipeline was closed, or retired by a failed execution: build a new one."""


class CheckpointError(ContractError):
    """A checkpoint, weight file, adapter or manifest is not what it must be."""


class MediaError(ContractError):
    """A picture, video or sound handed in cannot be used, or an output path cannot be written."""


class UnsupportedError(ContractError):
    """This machine, device, dtype or installed package cannot run the named choice; there is no fallback."""


class ExecutionError(VflashError, RuntimeError):
    """An accepted request failed while running; the pipeline that ran it is retired."""


class NonFiniteError(ExecutionError):
    """NaN or infinity appeared; the message names where (stage, evaluation, block)."""


class DeliveryError(ExecutionError):
    """Decoding or encoding the finished latents failed; the saved latents can be decoded again."""
