"""Worker processes in which something goes wrong."""

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.worker import describe_error


def variant(channel):
    channel.describe = describe_error
    raise VariantError("it gave 3 rows")


def library(channel):
    channel.describe = describe_error
    try:
        raise OSError("the disk is gone\nlong report")
    except OSError as cause:
        raise RuntimeError("step 1 of 3 failed") from cause
