"""Text out of pictures of pages, with rapidocr-onnxruntime (extra `ocr`), which carries its models with it."""

import importlib.util
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

HOW = "install rapidocr-onnxruntime (the extra `ocr`) and add the file again"
# Where the recogniser itself doubts more than this, a line is noise.
_MIN_SCORE = 0.5

_loading = threading.Lock()
_engine: Any = None


def available() -> bool:
    """Whether the extra is installed."""
    return importlib.util.find_spec("rapidocr_onnxruntime") is not None


def read_picture(pixels: npt.NDArray[np.uint8]) -> str:
    """The lines of text in a picture [height, width, 3], top to bottom, those at one height from left to right."""
    found, _ = _recogniser()(pixels)
    return in_reading_order(found or ())


def in_reading_order(found: Iterable[tuple[Sequence[Sequence[float]], str, float]]) -> str:
    """Recognised pieces (corners as x and y, text, score) as lines; what the recogniser doubts is left out."""
    lines: list[tuple[float, float, float, str]] = []
    for corners, text, score in found:
        ys = [corner[1] for corner in corners]
        if float(score) >= _MIN_SCORE:
            lines.append((min(ys), max(ys), min(corner[0] for corner in corners), text))
    lines.sort()
    rows: list[list[tuple[float, float, float, str]]] = []
    for line in lines:
        middle = (line[0] + line[1]) / 2
        if rows and middle < rows[-1][0][1]:
            rows[-1].append(line)
        else:
            rows.append([line])
    return "\n".join(" ".join(text for *_, text in sorted(row, key=lambda line: line[2])) for row in rows)


def _recogniser() -> Any:
    global _engine
    with _loading:
        if _engine is None:
            from rapidocr_onnxruntime import RapidOCR

            _engine = RapidOCR()
        return _engine
