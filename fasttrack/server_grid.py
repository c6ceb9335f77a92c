"""The grid of a whole server as a model directory keeps it: cells, what is stale or apart, and keeping what is new."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from fasttrack_validation.errors import UserError
from fasttrack_validation.load import compare
from fasttrack_validation.load.records import Failed, Measured, Record
from fasttrack_validation.performance.hardware import datasheet, datasheets
from fasttrack_validation.performance.serving_grid import ServingCell, ServingGrid, plan
from fasttrack_validation.records import digest_files

from . import storage
from .grid import Cell, Standing
from .model_dir import ModelDirectory

FOLDER = "server"


ServerCell = Cell[ServingCell, Record]


class ServerGrid:
    """The grid of `directory`'s server on `gpus` linked cards of a kind; None for as many as there are links.

    `folder`: where records lie, by default in the model directory.
    """

    def __init__(
        self, directory: ModelDirectory, grid: ServingGrid, hardware: str, gpus: int | None = None,
        folder: Path | None = None,
    ) -> None:  # fmt: skip
        self.directory, self.grid, self.hardware = directory, grid, hardware
        self.folder = folder or directory.path / "evidence/grid" / hardware / FOLDER
        """Where records lie"""
        if hardware not in datasheets() and hardware == grid.hardware:
            # A grid of one's own, on something that no data sheet is known of: its servers decide what runs.
            self._excluded = dict.fromkeys((cell.key for cell in grid.cells), None)
            return
        linked = datasheet(hardware).link_domain if gpus is None else gpus
        self._excluded = {one.cell.key: one.excluded for one in plan(grid, hardware, linked)}

    @cached_property
    def subject(self) -> str:
        """Digest of what a specialised server runs of this directory."""
        return subject(self.directory)

    def cells(self, patterns: Sequence[str] = ()) -> tuple[ServerCell, ...]:
        """All cells whose names match one of `patterns`. Raises UserError where a pattern matches none."""
        keys = [cell.key for cell in self.grid.cells]
        for pattern in patterns:
            if not any(fnmatchcase(key, pattern) for key in keys):
                raise UserError(f"no cell is called {pattern!r}", f"cells are called {keys[0]}, ..., {keys[-1]}")
        kept = self.kept()
        fresh = {key: one for key, one in kept.items() if one.subject == self.subject}
        apart = compare.apart(fresh)
        found = (self._cell(cell, kept.get(cell.key), apart.get(cell.key)) for cell in self.grid.cells)
        return tuple(c for c in found if not patterns or any(fnmatchcase(c.spec.key, p) for p in patterns))

    def _cell(self, spec: ServingCell, record: Record | None, apart: str | None) -> ServerCell:
        if record is None:
            why = self._excluded[spec.key]
            if why:
                return Cell(spec, Standing.EXCLUDED, None, why)
            return Cell(spec, Standing.MISSING, None, "nothing is kept: run `fasttrack grid run --scope server`")
        if record.subject != self.subject:
            return Cell(spec, Standing.STALE, record, "what is kept is about other sources of this directory")
        if apart:
            return Cell(spec, Standing.APART, record, apart)
        match record.outcome:
            case Measured():
                return Cell(spec, Standing.MEASURED, record, "")
            case Failed(reason=reason):
                return Cell(spec, Standing.FAILED, record, reason)
        return Cell(spec, Standing.MISSING, record, record.outcome.reason)

    def kept(self) -> dict[str, Record]:
        """Cell -> record of all that is kept, stale or not."""
        return records_of({path.name: path.read_bytes() for path in self.folder.glob("*.json")}, str(self.folder))

    def keep(self, record: Record) -> Path:
        """Writes a record into the model directory, in full or not at all."""
        path = self.folder / f"{record.cell.key}.json"
        storage.write_file(path, (record.model_dump_json() + "\n").encode())
        return path


def subject(directory: ModelDirectory) -> str:
    """Digest of what a specialised server runs of a model directory: decode path, kernels, dispatch tables."""
    files = dict(directory.decode_sources())
    for name, op in directory.manifest.ops.items():
        files |= {path: text.encode() for path, text in directory.sources(name).items()}
        files[op.dispatch] = (directory.path / op.dispatch).read_bytes()
    return digest_files(files)


def records_of(files: Mapping[str, bytes], where: str) -> dict[str, Record]:
    """Cell -> record, of the JSON files of such a directory. Raises UserError for any other file, or a wrong name."""
    found = {}
    for name, text in sorted(files.items()):
        try:
            record = Record.model_validate_json(text)
        except ValidationError as error:
            raise UserError(
                f"cannot read {where}/{name}: {str(error).splitlines()[0]}", "restore it, or delete it and run again"
            ) from error
        if name != f"{record.cell.key}.json":
            raise UserError(f"{where}/{name} is about {record.cell.key}", "restore its name, or delete it")
        found[record.cell.key] = record
    return found
