"""Verbs that look and measure: doctor, model describe, bench simulate."""

from __future__ import annotations

import argparse

from stemdl.cli_arguments import write_json as _write_json
from stemdl.cli_run import load, make_console


def doctor(arguments: argparse.Namespace) -> int:
    """`stemdl doctor`."""
    from stemdl.doctor import as_json, examine

    answers = examine(arguments.folder)
    marks = {"ok": "", "note": "note: ", "warning": "WARNING: "}
    for answer in answers:
        for number, line in enumerate(answer.lines):
            print(f"{answer.key if number == 0 else '':<10}{line.fact}\n{'':<12}→ {marks[line.level]}{line.follows}")
    _write_json(arguments.json, as_json(answers))
    return 0


def describe_model(arguments: argparse.Namespace) -> int:
    """`stemdl model describe FILE`."""
    from stemdl.models.describe import describe, format_description

    description = describe(load(arguments))
    print(format_description(description))
    _write_json(arguments.json, description.as_dict())
    return 0


def bench_ranks(arguments: argparse.Namespace) -> int:
    """`stemdl bench ranks FILE`."""
    from stemdl.bench.ranks import bench_ranks as measure
    from stemdl.bench.ranks import format_rank_bench
    from stemdl.progress import choose_progress

    progress = choose_progress(make_console())
    figures = measure(load(arguments), ranks=arguments.ranks, repeats=arguments.repeats, progress=progress)
    print(format_rank_bench(figures))
    _write_json(arguments.json, figures.as_dict())
    return 0


def bench_comm(arguments: argparse.Namespace) -> int:
    """`stemdl bench comm FILE`."""
    from stemdl.progress import choose_progress

    config, progress = load(arguments), choose_progress(make_console())
    record: dict[str, object] = {}
    if "steps" in arguments.parts:
        from stemdl.bench.comm import bench_comm as measure
        from stemdl.bench.comm import format_comm_bench

        steps = measure(
            config,
            ranks=arguments.ranks,
            workloads=arguments.workloads,
            steps=arguments.steps,
            batch=arguments.batch,
            progress=progress,
        )
        print(format_comm_bench(steps))
        record |= steps.as_dict()
    if "counts" in arguments.parts:
        from stemdl.bench.comm_control_counts import compare_counts, format_comparison
        from stemdl.bench.comm_counts import count_control, format_counts

        counted = count_control(arguments.count_ranks)
        print(format_counts(counted))
        print(format_comparison(compare_counts(counted)))
        record["control_counts"] = [one.as_dict() for one in counted]
    if "model" in arguments.parts:
        from stemdl.bench.comm_report import model_results, report_dict, report_text, save_model_picture

        results = model_results()
        print(report_text(results))
        record["model"] = report_dict(results)
        if arguments.picture is not None:
            save_model_picture(arguments.picture, results)
    _write_json(arguments.json, record)
    return 0


def bench_simulate(arguments: argparse.Namespace) -> int:
    """`stemdl bench simulate FILE`."""
    from stemdl.bench.simulate import bench_simulate as measure
    from stemdl.bench.simulate import format_bench
    from stemdl.progress import choose_progress

    progress = choose_progress(make_console())
    figures = measure(load(arguments), specimens=arguments.specimens, repeats=arguments.repeats, progress=progress)
    print(format_bench(figures))
    _write_json(arguments.json, figures.as_dict())
    return 0


def bench_prism(arguments: argparse.Namespace) -> int:
    """`stemdl bench prism FILE`."""
    from stemdl.bench.prism import bench_prism as measure
    from stemdl.bench.prism import format_prism_bench
    from stemdl.progress import choose_progress

    figures = measure(
        load(arguments),
        scans=arguments.scans,
        semiangles_mrad=arguments.semiangles,
        repeats=arguments.repeats,
        progress=choose_progress(make_console()),
    )
    print(format_prism_bench(figures))
    _write_json(arguments.json, figures.as_dict())
    return 0


def bench_memory(arguments: argparse.Namespace) -> int:
    """`stemdl bench memory FILE`."""
    from stemdl.bench.memory import bench_memory as measure
    from stemdl.bench.memory import format_memory_bench
    from stemdl.progress import choose_progress

    figures = measure(load(arguments), chunks=arguments.chunks, progress=choose_progress(make_console()))
    print(format_memory_bench(figures))
    _write_json(arguments.json, figures.as_dict())
    return 0
