"""Examples for the help of every command, and first steps."""

from __future__ import annotations

FIRST = """Train image classifiers that generalize to unseen domains.

\b
First steps:
  mecam doctor                                             report hardware, packages and known problems
  mecam train --optimizer mecam --target sketch            train on the embedded data set
  mecam bench --data root --optimizer adam,mecam --out results
                                                           leave out each domain of root/<domain>/<class>/<image>
                                                           in turn, and print accuracies on the unseen domain
  mecam train --data root --optimizer mecam --out model    train on all domains, for use in a new one
  mecam list                                               list methods, optimizers, backbones, data sets
  mecam COMMAND --help                                     options and examples of a command
"""

# by command
EXAMPLES: dict[str, tuple[str, ...]] = {
    "train": (
        "mecam train --optimizer mecam --target sketch",
        "mecam train --data root --optimizer mecam --averaging swad --out averaged",
        "mecam train --data PACS --target photo --optimizer mecam --set optimizer_settings.rho=0.05 --out photo",
        "torchrun --nproc-per-node 4 -m mecam.cli train --data root --optimizer mecam --out model",
    ),
    "bench": (
        "mecam bench --optimizer adam,sam,mecam --seeds 0 --out results",
        "mecam bench --data root --optimizer adam,mecam --averaging none,swad --out results",
        "mecam bench --target sketch --optimizer adam,mecam --set optimizer_settings.rho=[0.05,0.1] --out sweep",
        "mecam bench recipes/table3.toml --data PACS --dry-run",
        "mecam bench --data root --optimizer adam,mecam --profile domainbed --out results",
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
        "mecam curvature results --compare paper",
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
    "list": ("mecam list", "mecam list optimizers --verbose", "mecam list profiles", "mecam list recipe"),
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
