"""Settings every test shares."""

import torch

# The matrices are small: threads would only contend with the other test processes.
torch.set_num_threads(1)
