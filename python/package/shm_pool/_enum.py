"""Enums of strings. Python has them from 3.11 on."""

import enum
import sys

if sys.version_info >= (3, 11):
    from enum import StrEnum as StrEnum
else:

    class StrEnum(str, enum.Enum):
        __str__ = str.__str__
