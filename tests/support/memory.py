"""Memory of tensors that are alive at once."""

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of large storages that are alive after any operation.

    Args:
        least: Bytes of a storage that counts; all others are taken for none.
    """

    def __init__(self, least):
        super().__init__()
        self.least, self.most, self._alive = least, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        large = False
        for leaf in tree_leaves(result):
            if not isinstance(leaf, Tensor) or leaf.device.type == "meta":
                continue
            storage = leaf.untyped_storage()
            if storage.nbytes() >= self.least:
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                large = True
        if large:
            alive = self._alive.items()
            self._alive = {key: one for key, one in alive if not one[0].expired()}
            self.most = max(self.most, sum(size for _, size in self._alive.values()))
        return result
