"""What to type: examples for the help of every command, and what to do first."""

from __future__ import annotations

FIRST = """Train image classifiers that hold up in domains they have never seen.

\b
What to do next:
  mecam doctor                                             what this machine has, and known problems
  mecam train --optimizer mecam --target sketch            try it on the embedded data set
  mecam bench --data root --optimizer adam,mecam --out results
                                                           your folder root/<domain>/<class>/<image>: how well
                                                           would a model do in a domain it has never seen?
  mecam train --data root --optimizer mecam --out model    the model for the next domain
  mecam list                                               what there is to choose from
  mecam COMMAND --help                                     a command's options, with examples
"""

# by the words of the command
EXAMPLES: dict[str, tuple[str, ...]] = {
    "train": (
        "mecam train --optimizer mecam --target sketch",
        "mecam train --data root --optimizer mecam --averaging swad --out model",
        "mecam train --data PACS --target photo --method coral --set lr=3e-5 --set optimizer_settings.rho=0.1",
        "torchrun --nproc-per-node 4 -m mecam.cli train --data root --optimizer mecam --out model",
    ),
    "bench": (
        "mecam bench --optimizer adam,sam,mecam --seeds 0 --out results",
        "mecam bench --data root --optimizer adam,mecam --averaging none,swad --out results",
        "mecam bench recipes/table3.toml --dry-run",
        "mecam bench --data root --optimizer mecam --engine ray --address auto --gpus 1 --out results",
    ),
    "table": (
        "mecam table results --baseline adam",
        "mecam table results --format latex --spread std",
        "mecam table results --compare paper",
    ),
    "report": ("mecam report results --out report.html",),
    "figures": ("mecam figures results --out figures",),
    "curvature": (
        "mecam curvature results/RUN results/OTHER --plot curvature.svg",
        "mecam curvature model --split validation --exact --double --images 200",
    ),
    "spectrum": ("mecam spectrum model --top 5 --density density.svg",),
    "landscape": (
        "mecam landscape results/RUN results/OTHER --out landscapes",
        "mecam landscape model --dimensions 1 --steps 21",
    ),
    "predict": ("mecam predict model photo.jpg folder-of-photos", "mecam predict model photo.jpg --format json"),
    "rerun": ("mecam rerun model", "mecam rerun results/RUN --out again"),
    "verify": ("mecam verify results",),
    "export": ("mecam export model --out exported", "mecam export model --format safetensors"),
    "list": ("mecam list", "mecam list optimizers --verbose", "mecam list recipe"),
    "doctor": ("mecam doctor",),
    "data list": ("mecam data list",),
    "data check": (
        "mecam data check root",
        "mecam data check benchmarks/PACS",
        "mecam data check images --name OfficeHome",
        "mecam data check packed",
    ),
    "data pack": (
        "mecam data pack root --out packed",
        "mecam data pack root --out packed --skip-unreadable --allow-missing-classes",
    ),
}


def epilog(command: str) -> str | None:
    """The end of a command's help."""
    lines = EXAMPLES.get(command)
    return None if lines is None else "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))
