"""The content of the page: its sections and their order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2
import numpy as np
from plotly import graph_objects as go

from kova.experiments.report import charts
from kova.experiments.report.answer import answers, sentences
from kova.experiments.report.comparison import RETURN, Comparison
from kova.experiments.report.noise_sections import noise_sections
from kova.experiments.report.numbers import decimals, in_words
from kova.experiments.report.palette import Palette
from kova.experiments.report.results import CollectedRuns
from kova.experiments.report.section import TITLES, Section, Table
from kova.experiments.report.statistics import Interval
from kova.experiments.runs.provenance import environment_of, provenance
from kova.experiments.sweeps.grid import Sweep, resume_command

#: Metrics whose rare depths would hide all that matters.
FLOORS = {"explained_variance": -1.0}


def render(results: CollectedRuns, comparison: Comparison, title: str, command: str) -> str:
    """Return the HTML of the report.

    Args:
        results: The runs.
        comparison: Of the finished ones.
        title: Of the page.
        command: That makes this page.
    """
    palette = Palette(comparison.arms)
    sections = [
        *_answers(comparison, palette),
        *_curves(comparison, palette),
        *noise_sections(comparison, results.finished, palette),
        *_statistics(comparison, palette),
        *_differences(comparison),
        *_pairs(comparison),
        *_wall_clock(comparison, palette),
        _state(results),
        _provenance(results, command),
    ]
    data: dict[str, Any] = {}
    for section in sections:
        for number, figure in enumerate(section.figures):
            name = f"{section.id}-{number}"
            data[name] = json.loads(figure.to_json())
            # The page's own style, not a copy of the template's in every chart.
            data[name]["layout"].pop("template", None)
            section.charts.append({"id": name})
    template = jinja2.Environment(autoescape=True).from_string(_file("template.html"))
    return template.render(
        title=title,
        lead=lead(results, comparison),
        answers=sentences(comparison),
        arms=[{"name": arm, "colour": palette.colour(arm)} for arm in comparison.arms],
        sections=sections,
        plotly=_file("vendor/plotly-cartesian.min.js"),
        # A closing tag inside a name must not end the script.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    )


def _file(name: str) -> str:
    """Return a file that comes with the package."""
    return (resources.files("kova.experiments.report") / name).read_text(encoding="utf-8")


def lead(results: CollectedRuns, comparison: Comparison) -> str:
    """Return how many runs there are, and of what."""
    if not results.runs and not results.damaged and not results.waiting:
        return "No run can be read below this directory yet."
    seeds = sorted({run.config.seed for run in results.finished})
    parts = [f"{len(results.finished)} of {_count(len(results.runs) + len(results.waiting), 'run')} finished"]
    if comparison.tasks:
        counts = {"task": len(comparison.tasks), "arm": len(comparison.arms), "seed": len(seeds)}
        parts.append(", ".join(_count(number, name) for name, number in counts.items()))
    if results.damaged:
        parts.append(f"{_count(len(results.damaged), 'damaged directory', 'damaged directories')}, listed below")
    return "; ".join(parts) + "."


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _answers(comparison: Comparison, palette: Palette) -> list[Section]:
    found = answers(comparison)
    if not found:
        return []
    note = "With 95 % intervals over seeds; how they are made is said below the statistics."
    figures = [figure for answer in found for figure in charts.intervals(answer, palette)]
    return [Section("answer", "The answer", note, figures)]


def _curves(comparison: Comparison, palette: Palette) -> list[Section]:
    notes = {
        RETURN: "Mean of the last 100 training episodes; line and band are mean ± standard deviation over seeds, cut "
        "where no run has been.",
        "entropy": "Of the policy, mean during an update; TRPO's at its end.",
        "policy_loss": "What the policy's optimizer minimised, mean over an update.",
        "explained_variance": "1 - Var(label - value)/Var(label) of a rollout, before the critic learns from it. What "
        "is below -1 comes in sight with a double click.",
    }
    sections = []
    for metric, note in notes.items():
        shown = [
            task for task in comparison.tasks if any(np.isfinite(a.curves[metric]).any() for a in task.arms.values())
        ]
        figures = [charts.learning(task, metric, task.name, palette, FLOORS.get(metric)) for task in shown]
        if figures:
            sections.append(Section(metric.replace("_", "-"), TITLES[metric].capitalize(), note, figures))
    return sections


def _statistics(comparison: Comparison, palette: Palette) -> list[Section]:
    rows = comparison.table()
    if not rows:
        return []
    note = "Scores are the last 100 training episodes of each run, mean ± standard deviation over seeds."
    lines: dict[str, list[str]] = {}
    figures: list[go.Figure] = []
    if comparison.compared:
        name, which = _reference(comparison)
        note += (
            " IQM: interquartile mean of scores normalised so that in each task 0 is the worst run of any arm and 1 "
            "the best, with a 95 % interval: Student's t on a bootstrap's standard error, cut at 0 and 1. P: that a "
            f"run is better than one of {name}, mean over tasks, with a 95 % interval. Sample efficiency: frames "
            f"{name} needed for its final score / frames this arm needed for it; - where it never got there.{which}"
        )
        figures.append(charts.profiles(comparison, palette))
        lines["IQM"] = [_interval(row.iqm) for row in rows]
        lines["tasks"] = [f"{len(row.finals)} of {len(comparison.tasks)}" for row in rows]
        lines[f"P(better than {name})"] = [_interval(row.improvement) for row in rows]
    else:
        note += " No task has more than one arm, so there is nothing to compare."
    for task in (task.name for task in comparison.tasks):
        lines[task] = _means_and_stds([row.finals.get(task) for row in rows])
    for task in (task.name for task in comparison.compared):
        lines[f"Sample efficiency, {task}"] = [_ratio(row.efficiency.get(task)) for row in rows]
    lines["Minutes a run"] = [f"{row.seconds / 60:.1f}" for row in rows]
    # Arms go down: a phone scrolls that way, and every column has one precision.
    table = Table(["", *lines], [[row.arm, *cells] for row, *cells in zip(rows, *lines.values(), strict=True)])
    return [Section("statistics", "Statistics", note, figures, table)]


def _differences(comparison: Comparison) -> list[Section]:
    sections = []
    for metric in (RETURN, "entropy", "policy_loss"):
        found = comparison.differences(metric)
        if not found:
            continue
        name, _ = _reference(comparison)
        what = "last 100 episodes" if metric == RETURN else "last tenth of the frames"
        note = (
            f"Mean over seeds, {what}, minus that of {name}, with Welch's 95 % interval of each on its own: where it "
            "holds 0, the runs cannot tell."
        )
        tasks = [task.name for task in comparison.compared if any(task.name in own for own in found.values())]
        columns = [_differences_on(task, found) for task in tasks]
        rows = [[arm, *cells] for arm, *cells in zip(found, *columns, strict=True)]
        title = f"{TITLES[metric].capitalize()} against {name}, task by task"
        sections.append(Section(f"difference-{metric.replace('_', '-')}", title, note, table=Table(["", *tasks], rows)))
    return sections


def _differences_on(task: str, found: Mapping[str, Mapping[str, Interval]]) -> list[str]:
    """Return the cells of a task, all with the number of decimals that fits its largest number."""
    own = [intervals.get(task) for intervals in found.values()]
    places = decimals(interval.estimate for interval in filter(None, own))
    return ["" if interval is None else in_words(interval, places) for interval in own]


def _pairs(comparison: Comparison) -> list[Section]:
    pairs = comparison.pairs()
    # Of two arms the statistics above say it already.
    if len(pairs) < 3:
        return []
    note = (
        "The probability that a run of the row's arm earns more than one of the column's, mean over common tasks, "
        "with a 95 % interval."
    )
    rows = [[arm, *(_interval(found.get(other)) for other in pairs)] for arm, found in pairs.items()]
    return [Section("pairs", "Every arm against every other", note, table=Table(["", *pairs], rows))]


def _reference(comparison: Comparison) -> tuple[str, str]:
    """Return what to call the arm that others are compared with, and which it is if it differs between tasks."""
    if len(comparison.references) == 1:
        return comparison.references[0], ""
    tasks = {arm: [task.name for task in comparison.compared if task.reference == arm] for arm in comparison.references}
    return "the reference", " The reference is " + "; ".join(f"{arm} on {', '.join(tasks[arm])}" for arm in tasks) + "."


def _means_and_stds(found: Sequence[tuple[float, float] | None]) -> list[str]:
    """Return the cells of a task, all with the number of decimals that fits its largest number."""
    places = decimals(mean for mean, _ in filter(None, found))

    def cell(mean: float, std: float) -> str:
        return f"{mean:,.{places}f}" if np.isnan(std) else f"{mean:,.{places}f} ± {std:,.{places}f}"

    return ["" if pair is None else cell(*pair) for pair in found]


def _ratio(found: float | None) -> str:
    return "" if found is None else f"{found:.2f}" if found else "-"


def _interval(found: Interval | None) -> str:
    if found is None:
        return ""
    ends = "" if np.isnan(found.low) else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.estimate:.2f}{ends}"


def _wall_clock(comparison: Comparison, palette: Palette) -> list[Section]:
    if not comparison.tasks:
        return []
    seconds = {
        arm: {task.name: float(task.arms[arm].seconds.mean()) for task in comparison.tasks if arm in task.arms}
        for arm in comparison.arms
    }
    note = "Mean over seeds, one thread for each run, measured while the machine may have done other work."
    return [Section("wall-clock", "Wall-clock", note, [charts.wall_clock(seconds, palette)])]


def _state(results: CollectedRuns) -> Section:
    states = Counter(run.state for run in results.runs)
    if results.waiting:
        states["not begun"] += len(results.waiting)
    note = ", ".join(f"{count} {state}" for state, count in states.items()) or "None."
    rows = [[str(run.path), run.state, run.flaw] for run in results.runs if run.flaw]
    rows += [[str(one.path), "damaged", one.reason] for one in results.damaged]
    table = Table(["directory", "state", "why"], rows, text=True) if rows else None
    return Section("runs", "Runs", note, table=table)


def _machines(results: CollectedRuns) -> list[dict[str, Any]]:
    """Return every distinct set of versions and machine with which runs were trained."""
    kinds = [environment_of(maker) for run in results.runs for maker in run.made_by]
    return [kind for place, kind in enumerate(kinds) if kind not in kinds[:place]]


def _provenance(results: CollectedRuns, command: str) -> Section:
    lines = [command, ""]
    for number, facts in enumerate(_machines(results), start=1):
        lines += [f"# trained with ({number})", *(f"{name}: {value}" for name, value in facts.items())]
    lines += ["", "# reported with", *(f"{name}: {value}" for name, value in provenance(command).items())]
    shown: list[Sweep] = []
    for manifest, sweep in results.sweeps.items():
        if sweep not in shown:
            shown.append(sweep)
            lines += ["", resume_command(manifest), f"# {manifest.name}:", sweep.to_yaml().rstrip()]
    seeds = sorted({run.config.seed for run in results.runs})
    lines += ["", f"seeds: {', '.join(map(str, seeds)) or 'none'}"]
    return Section("provenance", "How this was made", "Commands, versions and seeds.", code="\n".join(lines))
