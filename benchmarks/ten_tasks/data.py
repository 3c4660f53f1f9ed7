"""Data that a user might bring: pictures with masks, digits, and one small dictionary."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Exposures(Dataset):
    """Noise of any exposure, in which a rectangle is brighter; the rectangle is the mask."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        picture, mask = torch.rand(3, 32, 32, generator=generator), torch.zeros(32, 32).long()
        top, left, height, width = torch.randint(2, 14, (4,), generator=generator).tolist()
        mask[top : top + height, left : left + width] = 1
        exposure = torch.exp(2 * torch.randn(1, generator=generator))
        return {"image": (picture + 0.5 * mask) * exposure, "masks": mask}


masks = DataLoader(Exposures(), batch_size=2, shuffle=True)

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
digits = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)

words = {"input_ids": torch.randint(50, (16, 12)), "labels": torch.randint(3, (16,))}
