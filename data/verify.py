"""Are the prepared files what `prepare` wrote? They are read while graphs are compiled, and on behind the training if need be."""
import threading
from pathlib import Path

from data.manifest import Manifest
from parallel.files import sha256


class Verifier:
    """Compares files' SHA-256 with the manifest's, in a thread; MindRecord itself notices nothing, or dies of what it reads.

    Args:
        rank, ranks: of each `ranks` files this one looks at one.
    """

    def __init__(self, manifest: Manifest, folder: Path, rank: int, ranks: int):
        files = [file for entry in manifest.sets.values() for file in entry.files]
        self.files, self.folder = sorted(files, key=lambda file: (-file.size, file.name))[rank::ranks], folder
        self.problem = ""  # what is wrong with the first file that is not as it was
        self.thread = threading.Thread(target=self._run, name="verify", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for file in self.files:
            path = self.folder / file.name
            try:
                if sha256(path) != file.sha256:
                    self.problem = f"{path} was altered: its SHA-256 is not that of the manifest"
            except OSError as error:
                self.problem = f"{path} cannot be read ({error})"
            if self.problem:
                self.problem += ". Restore it, or prepare again (python -m data prepare)"
                return

    def wait(self, seconds: float) -> str:
        """What has been found after at most so many seconds; "": nothing, so far."""
        self.thread.join(seconds)
        return self.problem
