"""The nano model's decode steps by the stock path; prompts are the plain path's."""

from torch import Tensor

from ....errors import UserError
from ....generation.paths import Setup
from .. import stock
from ..step.precision import PUBLISHED
from ..step.state import Batch
from .served import Plain


class Stock(Plain):
    """As `Path`. Needs a GPU: raises UserError naming what is missing."""

    def __init__(self, setup: Setup) -> None:
        if setup.tp != 1:
            raise UserError("the stock path is served as one rank", "leave --tp out")
        stock.require.gpu(setup.device)
        super().__init__(setup, PUBLISHED)
        from ..stock.layer import to_device

        self._path = stock.path(self.architecture, 1, device=setup.device)
        rank = self.ranks[0]
        self._layers = [self._path.prepare(number, layer) for number, layer in rank.layers.items()]
        self._final, self._head = (to_device(part, self._path.device) for part in (rank.final_mix, rank.lm_head))
        self.card = self.card.model_copy(update={"decode": "stock"})

    def step(self, batch: Batch) -> Tensor:
        """As `Plain`."""
        from ..stock.step import Tables

        tables = Tables.of(batch, self.state, self._path.device)
        stream = self._path.start(self.ranks[0].embedding[batch.tokens])
        for layer in self._layers:
            self._path.layer(layer, stream, self.state.ranks[0][layer.number], tables)
        logits = self._path.head(stream, self._final, self._head)
        self.state.offer(batch)
        return logits
