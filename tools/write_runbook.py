"""Write docs/runbook.md from the entries of `leaseway.runbook`."""

from __future__ import annotations

from pathlib import Path

from leaseway.runbook import markdown

if __name__ == "__main__":
    page = Path(__file__).resolve().parent.parent / "docs" / "runbook.md"
    page.write_text(markdown(), encoding="utf-8")
    print(page)
