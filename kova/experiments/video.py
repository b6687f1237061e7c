"""A video of an episode in which the value and its 2σ band run along the bottom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from kova.experiments.config import WrongCall
from kova.experiments.evaluation import Episode

STRIP = 128
MARGIN = 8
BAND, LINE, CURSOR, INK = (253, 208, 162), (217, 95, 2), (27, 158, 119), (60, 60, 60)

Frame = npt.NDArray[np.uint8]


def write(path: Path, episode: Episode, fps: int) -> None:
    """Write the episode as an mp4.

    Raises:
        WrongCall: The encoder is missing, or the file cannot be written.
    """
    try:
        import imageio.v2 as imageio
        import imageio_ffmpeg  # noqa: F401
    except ModuleNotFoundError as error:
        raise WrongCall(f'{error.name} is missing; --video needs: pip install "kova-rl[experiments]"') from None
    # The encoder wants even sides; frames of any size are padded to it.
    frames = [_even(np.vstack([frame, strip])) for frame, strip in zip(episode.frames, _strips(episode), strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.stem}.tmp.mp4")
    try:
        with imageio.get_writer(draft, fps=fps, codec="libx264", macro_block_size=2) as writer:
            for frame in frames:
                writer.append_data(frame)  # type: ignore[attr-defined]
        draft.replace(path)
    except OSError as error:
        raise WrongCall(f"{path} cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)


def _strips(episode: Episode) -> list[Frame]:
    """Draw the value over the whole episode once, and a cursor at every frame."""
    width = episode.frames[0].shape[1]
    if episode.mean is None or episode.stddev is None:
        blank = _canvas(width, "this critic keeps no uncertainty")
        return [np.asarray(blank)] * episode.length
    upper, lower = episode.mean + 2 * episode.stddev, episode.mean - 2 * episode.stddev
    low, high = float(lower.min()), float(upper.max())
    canvas = _canvas(width, f"value ± 2σ   {low:.1f} … {high:.1f}")
    draw = ImageDraw.Draw(canvas)
    x = np.linspace(MARGIN, width - MARGIN, episode.length)

    def y(values: Any) -> Any:
        return STRIP - MARGIN - (values - low) / max(high - low, 1e-9) * (STRIP - 3 * MARGIN - 12)

    outline = [*zip(x, y(upper), strict=True), *reversed(list(zip(x, y(lower), strict=True)))]
    draw.polygon(outline, fill=BAND)
    draw.line(list(zip(x, y(episode.mean), strict=True)), fill=LINE, width=2)
    strips = []
    for index in range(episode.length):
        now = canvas.copy()
        pen = ImageDraw.Draw(now)
        pen.line([(x[index], 20), (x[index], STRIP - MARGIN)], fill=CURSOR, width=2)
        text = f"{episode.mean[index]:.1f} ± {2 * episode.stddev[index]:.1f}"
        pen.text((width - MARGIN - 7 * len(text), 4), text, fill=CURSOR)
        strips.append(np.asarray(now))
    return strips


def _canvas(width: int, text: str) -> Image.Image:
    canvas = Image.new("RGB", (width, STRIP), "white")
    ImageDraw.Draw(canvas).text((MARGIN, 4), text, fill=INK)
    return canvas


def _even(frame: Frame) -> Frame:
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
