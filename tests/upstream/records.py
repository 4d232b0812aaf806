"""What became of PyTorch's own tests on one machine, kept for the page on compatibility."""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.upstream.suites import Outcome

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Record:
    """One run of some of PyTorch's test files."""

    torch: str
    where: str
    """host or gpu."""
    date: str
    files: dict[str, Outcome]

    @classmethod
    def made_now(cls, where: str, files: dict[str, Outcome]) -> Record:
        """Of this machine."""
        import torch

        today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        return cls(torch.__version__, where, today, files)

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return FOLDER / f"torch-{self.torch}-{self.where}.json"


def write(record: Record) -> None:
    """Files that an earlier record tells of, and this one does not, stay."""
    FOLDER.mkdir(exist_ok=True)
    earlier = read(record.path).files if record.path.exists() else {}
    kept = replace(record, files={**earlier, **record.files})
    record.path.write_text(json.dumps(asdict(kept), indent=1) + "\n")


def read(path: Path) -> Record:
    """The record in a file."""
    fields = json.loads(path.read_text())
    files = {name: Outcome(**outcome) for name, outcome in fields.pop("files").items()}
    return Record(**fields, files=files)


def read_all() -> list[Record]:
    """Every record there is."""
    return [read(path) for path in sorted(FOLDER.glob("torch-*.json"))]
