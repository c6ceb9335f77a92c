"""Two honest arms of a frozen exam, as recorded answers, for tests that then break one thing."""

from fasttrack_validation.accuracy import build
from fasttrack_validation.accuracy.answers import Answer, Answers, Arm, Sampling
from fasttrack_validation.accuracy.draw import Draw
from fasttrack_validation.accuracy.family import Family
from fasttrack_validation.accuracy.frozen import Exam, Manifest, Scorer
from fasttrack_validation.accuracy.plan import Plan
from fasttrack_validation.accuracy.rule import Rule

STOPS = ("<a>", "<b>", "<c>", "<d>", "<e>")


def exam(kind: str = "sample_choices", **sizes) -> Exam:
    sizes = {"seed": 0, "needles": (2,), "words": (1000,), "items_each": 4, **sizes}
    draft = build.build(build.plan(kind, **sizes))
    manifest = Manifest.model_validate_json(draft.files()["manifest.json"])
    return Exam(manifest, draft.items, {key.item: key for key in draft.keys})


def plan(of: Exam, *looks: int, family: Family | None = None, **rule) -> Plan:
    shared = family.fail_tests if family else 1
    return Plan(
        exam=of.manifest.exam, exam_sha256=of.digest, items=len(of.items), family=family,
        rule=Rule(**{"margin_points": 3.0, "looks": looks or (4,), "fail_tests": shared, **rule}),
    )  # fmt: skip


def sitting(
    of: Exam, by: Plan, arm: str, *, repeats: int = 4, wrong_in_100: int = 0, temperature: float = 0.6,
    run: str = "",
) -> Answers:  # fmt: skip
    """An arm that is wrong in that share of its answers, each with its own reasoning and seed; `run` draws others."""
    header = Arm(
        arm=arm, exam_sha256=of.digest, plan_sha256=by.digest(), model="nano",
        sampling=Sampling(temperature=temperature, top_p=0.95, max_tokens=4096, stop=STOPS),
        stop_sent=STOPS, kernels={} if arm == "baseline" else {"kda_decode": 69},
        acceptance_forced=False,
    )  # fmt: skip
    answers = []
    for item in of.items:
        for repeat in range(repeats):
            draw = Draw("answers", arm, run, item.id, repeat)
            wrong = draw.below(100) < wrong_in_100
            answers.append(Answer(
                item=item.id, prompt_sha256=item.prompt_sha256, repeat=repeat, seed=draw.below(2**31), model="nano",
                text=_text(of, item.id, wrong), reasoning=f"Let me think. {draw.letters(40)}", finish_reason="stop",
                tokens=180 + draw.below(40),
            ))  # fmt: skip
    return Answers(header, tuple(answers))


def _text(of: Exam, item: str, wrong: bool) -> str:
    answer = of.keys[item].answer
    match of.manifest.scorer:
        case Scorer.MRCR:
            return answer if not wrong else answer[:10] + "nothing of the kind"
        case Scorer.INTEGER:
            return f"Answer: {int(answer) + wrong}"
        case Scorer.CHOICE:
            return f"Answer: {answer if not wrong else 'ABCD'[('ABCD'.index(answer) + 1) % 4]}"
