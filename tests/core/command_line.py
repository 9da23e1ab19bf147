"""What the tests of the command line share."""

from hyper_pp.cli import main

SHAPE = ("--ranks", 2, "--micro-batches", 3)


def run_in(folder, capsys, monkeypatch):
    """Return a function that runs a command in a folder and returns exit status, stdout and stderr."""
    monkeypatch.chdir(folder)

    def run(*words):
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
