"""Schemas of the files of a run. Everything that is read is checked against these types.

Fields and columns that are not named here may be present and have any content.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert, field

from popart.lab.checks import LabError

Name = Annotated[str, Meta(pattern=r"^\w[\w-]{0,99}\Z")]
"""The name of a file in the run folder, without its suffix: it cannot lead elsewhere."""

Text = Annotated[str, Meta(max_length=20_000)]
Count = Annotated[int, Meta(ge=0, lt=2**62)]
Agent = Literal["clipped", "unclipped", "popart"]
Game = Literal["cartpole", "catch", "breakout", "space_invaders", "asterix", "freeway"]
TasksMethod = Literal["unclipped", "clipped", "symlog", "vecnormalize", "art", "one_statistic", "popart"]
Scalar = str | int | float | bool | None


class Shown(Struct):
    name: Name
    heading: Text
    caption: Text
    kind: Literal["figure", "table"]


class Finding(Struct):
    claim: Text
    paper: Text
    here: Text
    agrees: bool


class Resumed(Struct):
    at: Text
    versions: dict[Text, Text]


class Manifest(Struct):
    format: int
    experiment: Text
    title: Text
    settings: dict[Text, Scalar | list[Scalar]]
    command: Text
    versions: dict[Text, Text]
    started: Text
    resumed: list[Resumed]
    finished: Text | None
    device: Text | None = None
    commit: Text | None = None
    diverged: Text | None = None
    shown: list[Shown] = []
    findings: list[Finding] = []
    read: dict[Text, int] = {}


class TrainSettings(Struct):
    game: str
    agent: Agent


class EvaluateSettings(Struct):
    """Settings of an evaluation. The first release has none of these."""

    game: str | None = None
    agent: Agent | None = None
    frames: Count | None = None


class ScaleSettings(Struct):
    """Methods were called agents in earlier versions."""

    games: list[Game]
    scales: list[float]
    cases: list[Name] = []
    methods: list[Name] = []
    agents: list[Agent] = []

    def __post_init__(self) -> None:
        if not self.methods and not self.agents:
            raise ValueError("Object missing required field `methods`")


class TasksSettings(Struct):
    games: list[Game]
    scales: list[float]
    methods: list[TasksMethod]

    def __post_init__(self) -> None:
        if len(self.scales) != len(self.games):
            raise ValueError("Object has another number of `scales` than of `games`")


class NormsSettings(Struct):
    games: list[str]
    agents: list[Agent]


class RegressionSettings(Struct):
    methods: list[str]
    alphas: list[float]
    betas: list[float]


class StreamSettings(Struct):
    streams: list[Name]
    methods: list[Name]


SETTINGS: dict[str, type[Struct]] = {
    "train": TrainSettings,
    "evaluate": EvaluateSettings,
    "scale": ScaleSettings,
    "tasks": TasksSettings,
    "norms": NormsSettings,
    "regression": RegressionSettings,
    "stream": StreamSettings,
}
"""Settings that an analysis needs, for each experiment."""


class Metrics(Struct):
    frames: Count
    updates: Count
    score_100: float | None
    scale: float | None
    shift: float | None
    gradient_norm: float | None
    gradient_norm_5: float | None
    gradient_norm_95: float | None


class Evaluations(Struct):
    frames: Count
    score: float


class Episodes(Struct):
    episode: Count
    score: float


class Returns(Struct):
    """Methods were called agents in earlier versions, which had one learning rate and one case."""

    game: str
    scale: float
    value: float = field(name="return")
    method: str | None = None
    agent: str | None = None
    rate: float | None = None
    case: str | None = None

    def __post_init__(self) -> None:
        if self.method is None and self.agent is None:
            raise ValueError("Object missing required field `method`")


class RandomPlay(Struct):
    game: str
    value: float = field(name="return")


class TaskReturns(Struct):
    game: str
    method: str
    seed: Count
    value: float = field(name="return")


class Gradients(Struct):
    game: str
    agent: str
    updates: float
    gradient_norm: float


class Cells(Struct):
    method: str
    alpha: float
    beta: float | None
    rmse: float
    mean_error: float
    run_rmse: float
    diverged: float


class Curves(Struct):
    method: str
    sample: float
    p10: float
    median: float
    p90: float


class PaperCurves(Struct):
    method: str
    median: float


class Intervals(Struct):
    method: str
    low: float
    high: float


class Variances(Struct):
    changed: Literal["beta", "s"]
    beta: float
    s: float
    bound: float
    largest: float
    variance: float
    expected: float | None


class Examples(Struct):
    beta: float
    s: float
    variance: float


class Densities(Struct):
    beta: float | None
    s: float | None
    left: float = field(name="from")
    right: float = field(name="to")
    density: float


class Scores(Struct):
    game: str
    random: float
    human: float
    double_dqn: float = field(name="Double DQN")
    popart: float = field(name="with Pop-Art")


class StreamTuning(Struct):
    stream: str
    method: str
    rate: float
    beta: float | None
    error: float
    diverged: Count


class StreamErrors(Struct):
    stream: str
    method: str
    choice: Literal["steady", "own"]
    rate: float
    beta: float | None
    error: float
    settled: float
    diverged: Count


class StreamCurves(Struct):
    stream: str
    method: str
    choice: Literal["steady", "own"]
    sample: float
    error: float
    low: float
    high: float


TABLES: dict[str, dict[str, type[Struct]]] = {
    "train": {"metrics": Metrics, "evaluations": Evaluations},
    "evaluate": {"episodes": Episodes},
    "scale": {"returns": Returns, "tuning": Returns, "random": RandomPlay},
    "tasks": {"returns": TaskReturns},
    "norms": {"gradients": Gradients},
    "regression": {"grid": Cells, "curves": Curves, "paper_curves": PaperCurves, "intervals": Intervals},
    "histograms": {"variances": Variances, "examples": Examples, "densities": Densities},
    "stream": {"tuning": StreamTuning, "errors": StreamErrors, "curves": StreamCurves},
    "paper": {"scores": Scores},
}
"""Rows of the tables that are read by a program, for each experiment. Other tables are only shown."""


def table_schema(experiment: str, table: str) -> type[Struct] | None:
    """Return the schema of a table; None for one that is only shown."""
    return TABLES.get(experiment, {}).get(table)


class LoopCounts(Struct):
    turns: Count
    frames: Count
    steps: Count
    updates: Count
    episodes: Count
    stored: Count
    owed: Count
    overflows: Count
    seconds: float


class LoopNotes(Struct):
    counts: LoopCounts
    scores: list[list[float]]


class MetricsNotes(Struct):
    scores: list[float]
    recent: list[float]
    updates: list[list[list[float]]]
    logged: Count
    logged_updates: Count
    logged_seconds: float


class EvaluationNotes(Struct):
    evaluated: Count


class LastNotes(Struct):
    """Notes of the checkpoint from which a run is resumed."""

    frames: Count
    loop: LoopNotes
    metrics: MetricsNotes
    evaluation: EvaluationNotes


class BestNotes(Struct):
    """Notes of the best agent."""

    frames: Count
    score: float


class AnyNotes(Struct):
    """Notes that every checkpoint has."""

    frames: Count


def check(content: Any, schema: type[Struct], what: str, strict: bool = True) -> None:
    """Check content against a schema; an error names the file, the field and the value."""
    try:
        convert(content, schema, strict=strict)
    except ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        value = _value(content, place.strip("`")) if place else None
        where = f" at {place.strip('`').removeprefix('$.')}" if place else ""
        found = f" (it is {value!r:.80})" if value is not None else ""
        raise LabError(f"{what} is damaged: {reason}{where}{found}") from error


def _value(content: Any, place: str) -> Any:
    """Return the value at a place such as `$.shown[0].name`; None if there is none."""
    for word in place.removeprefix("$").replace("[", ".").replace("]", "").split("."):
        if not word:
            continue
        try:
            content = content[int(word)] if isinstance(content, list) else content[word]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return content if isinstance(content, Scalar) else type(content).__name__
