"""What all forms of attention do with heads."""
from mindspore import nn, ops

from parallel.mesh import Mesh


class Repeat(nn.Cell):
    """Each head of keys or values for its group of queries: [batch, kv heads, seq, d] -> [batch, heads, seq, d]."""

    def __init__(self, groups: int):
        super().__init__()
        self.groups, self.tile, self.reshape = groups, ops.Tile(), ops.Reshape()

    def construct(self, x):
        if self.groups == 1:
            return x
        batch, heads, t, d = x.shape
        tiled = self.tile(self.reshape(x, (batch, heads, 1, t, d)), (1, 1, self.groups, 1, 1))
        return self.reshape(tiled, (batch, heads * self.groups, t, d))

    def shard(self, mesh: Mesh) -> None:
        """Samples over dp, heads of keys and values over tp, with which the queries' heads are cut too."""
        self.tile.shard(((mesh.dp, mesh.tp, 1, 1, 1),))
