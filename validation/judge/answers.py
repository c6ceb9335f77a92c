"""What a sandboxed job says, made harmless: hostile code may have written it, and it is shown to people and agents."""

from ..sandbox import JobResult


def reason_of(reason: object, prefix: str) -> str:
    """A reason id from an untrusted answer: one of the recorder's, or the generic one."""
    text = str(reason)[:80]
    return text if text.startswith(prefix) and text.replace(".", "").replace("_", "").isalnum() else f"{prefix}answer"


def last_line(result: JobResult) -> str:
    """Why a job did not end well, in one line."""
    lines = result.error.strip().splitlines()
    return text_of(lines[-1]) if lines else f"the job ended with {result.status.value}"


def text_of(message: str) -> str:
    """An untrusted message: one line, printable, and bounded, with its beginning and its end."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in message[:20_000]).split())
    return flat if len(flat) <= 600 else f"{flat[:200]} [...] {flat[-390:]}"
