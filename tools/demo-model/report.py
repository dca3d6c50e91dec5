#!/usr/bin/env python3
"""Writes report.md, loss.svg and the samples section of the README from the output of a build."""

import argparse
import json
import pathlib
import shutil

HERE = pathlib.Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=pathlib.Path, help="the folder of the build")
    parser.add_argument("--to", type=pathlib.Path, default=HERE, help="where report.md and loss.svg go")
    args = parser.parse_args()
    read = lambda name: json.loads((args.work / name).read_text())
    corpus, training = read("corpus.json"), read("fulmen-story/training.json")
    stats = read("stats.json") if (args.work / "stats.json").exists() else None
    fulmen = read("fulmen.json") if (args.work / "fulmen.json").exists() else {}
    repeat = read("repeat/training.json") if (args.work / "repeat/training.json").exists() else None
    sizes, arguments, quality = training["config"], training["arguments"], training["perplexity"]
    lines = ["# Report of the demo model", "", "Written by `report.py` from the build; not edited.", "",
             "## Corpus", "",
             f"{corpus['stories']} stories of {len(corpus['plots'])} plots (seed {corpus['seed']}, "
             f"{corpus['duplicates left out']} duplicates left out): "
             f"{corpus['train']['bytes'] / 1e6:.1f} MB to train on; {corpus['held-out']['stories']} stories "
             f"are held out, of which "
             f"{corpus['measured']['stories']} ({corpus['measured']['bytes'] / 1e3:.0f} kB) are measured.",
             ""]
    if stats:
        lines += [f"In the first {stats['stories']} stories: {stats['distinct words']} distinct words, "
                  f"stories of {stats['words of a story']['5 %']} to "
                  f"{stats['words of a story']['95 %']} words and signs (half above "
                  f"{stats['words of a story']['half']}).", "",
                  "| n-grams of words | distinct | seen once |", "|---|---|---|"]
        lines += [f"| {size} | {100 * stats[f'distinct {size}-grams']['share']:.1f} % | "
                  f"{100 * stats[f'distinct {size}-grams']['seen once']:.1f} % |" for size in (3, 5, 8, 12)]
        lines += ["", "Overlap with the nearest other story (Jaccard of 5-grams, names masked): "
                  + ", ".join(f"{name.removeprefix('overlap ')}: {100 * share:.2f} %"
                              for name, share in stats["nearest story"].items()) + " of the stories.", ""]
    lines += ["## Training", "",
              f"{training['parameters'] / 1e6:.2f} million parameters: {sizes['layers']} layers, hidden "
              f"{sizes['hidden']}, inner {sizes['inner']}, {sizes['heads']} query "
              f"and {sizes['kv_heads']} key heads of {sizes['head_dim']}, {sizes['vocabulary']} tokens, "
              f"context {sizes['context']}.", "",
              f"{training['steps']} steps of {arguments['batch']} windows in {training['seconds']:.0f} s on "
              f"{training['machine']} (PyTorch {training['torch']}), "
              f"{training['tokens seen'] / 1e6:.0f} M tokens, {training['epochs']} epochs of "
              f"{training['train tokens'] / 1e6:.2f} M tokens; "
              f"{arguments['optimizer']}, rate {arguments['rate']}, seed {arguments['seed']}.", "",
              "![loss over steps](loss.svg)", "",
              "## Held-out perplexity", "",
              f"Windows of {quality['context']} tokens, {quality['windows']} of them.", "",
              "| | second half of windows | all tokens |", "|---|---|---|",
              f"| PyTorch, F32 | {quality['second half']:.4f} | {quality['all']:.4f} |",
              f"| PyTorch, F32, on as much of the training text | "
              f"{training['perplexity of training text']['second half']:.4f} | "
              f"{training['perplexity of training text']['all']:.4f} |"]
    lines += [f"| fulmen, {name} | {value} | |" for name, value in fulmen.get("perplexity", {}).items()]
    if repeat:
        other = repeat["perplexity"]
        lines += [f"| PyTorch, F32, another training with seed {repeat['arguments']['seed']} "
                  f"({repeat['steps']} steps) | {other['second half']:.4f} | {other['all']:.4f} |"]
    if "size" in fulmen:
        mib = fulmen["size"] / 2**20
        lines += ["", f"The file that is embedded has {fulmen['size']} bytes ({mib:.2f} MiB)."]
    samples = fulmen.get("samples") or training["samples"]
    source = "PyTorch (temperature 0.8, top-k 40)"
    if fulmen.get("samples"):
        source = "`fulmen run --raw --seed N` with the quantized model"
    told = ["## Samples", "", f"From {source}, unedited; written by `report.py`.", ""]
    for sample in samples:
        text = sample["text"]
        if not text.startswith(sample["prompt"]):
            text = sample["prompt"] + text
        told += [f"**{sample['prompt']}**" + (f" (seed {sample['seed']})" if "seed" in sample else ""), ""]
        told += ["> " + line if line else ">" for line in text.strip().splitlines()] + [""]
    readme = args.to / "README.md"
    if readme.exists():
        before = readme.read_text().partition("\n## Samples\n")[0]
        readme.write_text(before + "\n" + "\n".join(told))
    else:
        lines += [""] + told
    (args.to / "report.md").write_text("\n".join(lines).rstrip() + "\n")
    shutil.copyfile(args.work / "fulmen-story/loss.svg", args.to / "loss.svg")
    print(f"{args.to / 'report.md'} and loss.svg")


if __name__ == "__main__":
    main()
