"""The proposer that asks a language model.

A round is one conversation: a prompt drawn from the archive, tool calls, and a candidate at its end. Every answer is in
the ledger under its place (round, conversation, request), and nothing else is kept between two proposals: a resumed run
walks the same conversation through the answers that it has, and goes on where they end.
"""

from collections.abc import Callable, Sequence

from fasttrack_validation.judge.candidate import Candidate

from . import briefing, lineage, prompt, reading
from .answer import Answer
from .bench import Workbench
from .metered import BudgetGone, Metered, NoTools, PromptTooLong, estimate
from .protocol import Done, Evaluation, Proposal
from .reading import Call
from .tools import ToolProblem, functions, parse

CONVERSATIONS = 3
"""Conversations without a candidate before a model is given up."""
CONTINUATIONS = 4
"""Answers in a row that may end at their cap."""
NUDGES = 3
"""Answers in a conversation that ask for nothing."""
_STUB = "(left out; ask again where it is needed)"


class Chat:
    """Proposes what a model writes."""

    name = "chat"

    def __init__(
        self, bench: Workbench, metered: Metered, seed: int, rounds: int, scrub: Callable[[str], str] = str
    ) -> None:
        """`rounds`: candidates that the run judges at most; `scrub` takes secrets out of what is sent."""
        self.bench, self.metered, self.seed, self.rounds, self.scrub = bench, metered, seed, rounds, scrub

    def propose(self, history: Sequence[Evaluation]) -> Proposal | Done:
        """The model's next candidate. Raises UserError where the endpoint is of no use."""
        self.bench.history, self.bench.draft = history, None
        drawn = lineage.draw(history, self.bench.buckets, self.seed)
        budget = self.metered.settings.prompt_tokens
        conversation = shortened = 0
        why = ""
        while conversation < CONVERSATIONS:
            talk = _Conversation(self, history, drawn, conversation, budget)
            try:
                found = talk.run()
            except BudgetGone as gone:
                return Done(str(gone))
            except NoTools:
                continue
            except PromptTooLong as error:
                budget, shortened = budget // 2, shortened + 1
                if shortened > 4:
                    return Done(f"{error}, even when it is as short as it can be")
                continue
            if isinstance(found, Done | Proposal):
                return found
            why = found
            conversation += 1
        return Done(f"the model wrote no candidate in {CONVERSATIONS} conversations; the last one: {why}")


class _Conversation:
    def __init__(
        self, chat: Chat, history: Sequence[Evaluation], drawn: lineage.Draw, number: int, budget: int
    ) -> None:
        self.chat, self.bench, self.metered = chat, chat.bench, chat.metered
        self.drawn, self.number, self.budget = drawn, number, budget
        self.round = len(history)
        # The prompt leaves a third of the budget to what tools return.
        self.messages: list[dict] = prompt.build(
            self.bench, history, drawn, tools=self.metered.tools, left=self.metered.left(),
            rounds_left=chat.rounds - len(history), budget=budget * 2 // 3,
        )  # fmt: skip
        self.base = "tree" if drawn.parent is None else drawn.parent.proposal.candidate.digest()
        self.pending = ""
        self.nudges = self.continuations = 0

    def run(self) -> Proposal | Done | str:
        """The candidate, the end of the search, or why this conversation came to nothing."""
        why = "it used up its requests"
        for step in range(self.metered.settings.requests_a_round):
            if not self._fit():
                return "it filled the prompt's budget"
            answer = self._ask(step)
            if (again := self._cut(answer)) is not None:
                if again:
                    return again
                continue
            whole = answer.model_copy(update={"text": self.pending + answer.text})
            self.pending, self.continuations = "", 0
            found = self._follow(whole, reading.read(whole))
            if isinstance(found, Proposal | Done):
                return found
            if found:
                why = found
                self.nudges += 1
                if self.nudges >= NUDGES:
                    return why
        return why

    def _ask(self, step: int) -> Answer:
        messages = [{**message, "content": self.chat.scrub(message["content"])} for message in self.messages]
        return self.metered.ask((self.round, self.number, step), messages, functions())

    def _cut(self, answer: Answer) -> str | None:
        """Asks for the rest of an answer that ended at its cap. None: it is whole; text: why to give up."""
        if not answer.cut:
            return None
        self.continuations += 1
        if self.continuations > CONTINUATIONS:
            return f"{self.continuations} answers in a row were cut at their cap of {answer.cap} tokens"
        if answer.calls:
            # Half a call cannot be followed, even where it happens to be JSON.
            self._say(answer.model_copy(update={"calls": ()}))
            self._reply(
                f"Your tool call was cut at {answer.cap} tokens and nothing of it was used. Make it again, shorter."
            )
        elif not answer.text.strip():
            self._say(answer)
            self._reply(
                f"Your answer reached its cap of {answer.cap} tokens before it said anything. Think less and answer."
            )
        else:
            # The model sees its own text; a fence that it opens anew would close the one that is open.
            self.pending += _resumed(self.pending, answer.text)
            self._say(answer)
            self._reply(
                f"Your answer was cut at {answer.cap} tokens. Go on exactly where it stopped, in the middle of the line if "
                "need be, without repeating anything and without opening the block again."
            )
        return ""

    def _follow(self, answer: Answer, found: reading.Reading) -> Proposal | Done | str:
        """What an answer asks for, done. Text: why it came to nothing, which the model has been told."""
        native = any(call.id is not None for call in found.calls)
        self._say(answer, native=native)
        if found.files:
            return self._written(found)
        if not found.calls:
            why, hint = _nothing(answer, found)
            self._reply(hint)
            return why
        results: list[tuple[Call, str]] = []
        for call in found.calls:
            try:
                if call.problem:
                    raise ToolProblem(call.problem)
                tool = parse(call.name, call.arguments)
                if tool.name == "write_candidate" and "base" not in tool.model_fields_set:
                    tool = tool.model_copy(update={"base": self.base})
                result = self.bench.call(tool)
            except ToolProblem as problem:
                results.append((call, f"not done: {problem}"))
                continue
            if result.proposal is not None:
                return self._proposal(result.proposal.candidate, result.proposal.note)
            if result.finish is not None:
                return Done(f"the agent ends the search: {result.finish}")
            results.append((call, result.text))
        self._results(results)
        return "" if any(not call.problem for call in found.calls) else "its tool calls could not be read"

    def _written(self, found: reading.Reading) -> Proposal | Done | str:
        """A candidate from fenced blocks, with the configuration and the note of the calls beside them."""
        config: dict[str, object] = {}
        note = ""
        for call in found.calls:
            given = call.arguments.get("config")
            config |= given if isinstance(given, dict) else {}
            note = str(call.arguments.get("note") or note)
        try:
            made = self.bench.write(found.files, config, self.base)
        except ToolProblem as problem:
            self._reply(f"Not done: {problem}")
            return str(problem)
        known = next((e for e in self.bench.history if e.proposal.candidate == made), None)
        if known is not None:
            self._reply("That very candidate has been judged before. Write another one.")
            return "it repeated a candidate"
        return self._proposal(made, briefing.line(note) or "written by the model")

    def _proposal(self, candidate: Candidate, note: str) -> Proposal:
        return Proposal(candidate, note, self.drawn.parents, self.drawn.island)

    def _say(self, answer: Answer, *, native: bool = False) -> None:
        """Adds the model's answer to the conversation. Reasoning stays in the ledger."""
        message: dict = {"role": "assistant", "content": answer.text or ("" if native else "(no text)")}
        if native and answer.calls:
            message["tool_calls"] = [
                {
                    "id": c.id,
                    "type": "function",
                    "function": {"name": c.name or "unknown", "arguments": _json(c.arguments)},
                }
                for c in answer.calls
            ]
        self.messages.append(message)

    def _reply(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def _results(self, results: list[tuple[Call, str]]) -> None:
        by_id: dict[str, list[str]] = {}
        loose = []
        for call, text in results:
            if call.id is None:
                loose.append(f"{call.name or 'the call'}: {text}")
            else:
                by_id.setdefault(call.id.partition("+")[0], []).append(text)
        for id, texts in by_id.items():
            self.messages.append({"role": "tool", "tool_call_id": id, "content": "\n\n".join(texts)})
        if loose:
            self._reply("\n\n".join(loose))

    def _fit(self) -> bool:
        """Leaves the oldest answers and results out where the conversation has outgrown its budget."""
        for message in self.messages[2:-2]:
            if estimate(self.messages) <= self.budget:
                break
            if len(message["content"]) > len(_STUB):
                message["content"] = _STUB
            for call in message.get("tool_calls", ()):
                call["function"]["arguments"] = "{}"
        return estimate(self.messages) <= max(self.budget, estimate(self.messages[:2]))


def _nothing(answer: Answer, found: reading.Reading) -> tuple[str, str]:
    """Why there is nothing to follow, for the record and for the model."""
    if answer.refusal:
        return (
            f"the model refused: {briefing.line(answer.refusal)}",
            "Write a candidate, or call `finish` if you will not.",
        )
    if answer.empty and answer.reasoning:
        return (
            "everything it wrote was reasoning",
            "Your answer was empty: what you think is not read. Answer with a candidate.",
        )
    if answer.empty:
        return "its answer was empty", "Your answer was empty. Answer with a candidate."
    if found.open:
        return (
            "a code block has no end",
            "Your last code block has no end. Write the file again, whole, and close the block.",
        )
    return (
        f"no candidate in its answer: {briefing.line(answer.text, 80)}",
        "There is no tool call and no file in your answer. Write whole files, or call a tool.",
    )


def _resumed(before: str, more: str) -> str:
    """What goes on after `before`: without the fence line that a model likes to open again."""
    within = any(not block.closed for block in reading.blocks(before))
    if within and more.lstrip().startswith(("```", "~~~")):
        return more.lstrip().partition("\n")[2]
    return more


def _json(arguments: str) -> str:
    """Arguments as an endpoint takes them back: some refuse what they themselves have sent."""
    import json

    try:
        return arguments if isinstance(json.loads(arguments), dict) else "{}"
    except (ValueError, RecursionError):
        return "{}"
