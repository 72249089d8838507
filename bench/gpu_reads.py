"""A read of memory by a kernel of Triton, one of the ways in which gpu_timing.py measures the read bandwidth. Imported where Triton is."""
import torch
import triton
import triton.language as tl

STEPS, BLOCK = 4, 4096


@triton.jit
def read_words(words, found, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * STEPS * BLOCK
    folded = tl.zeros([BLOCK], tl.int32)
    for step in tl.static_range(STEPS):
        folded ^= tl.load(words + first + step * BLOCK + tl.arange(0, BLOCK))
    tl.store(found + tl.program_id(0), tl.xor_sum(folded, axis=0))


def reads(source):
    """A call that reads all of `source` (int32, a multiple of 16384); it returns the exclusive ors of its parts."""
    blocks = source.numel() // (STEPS * BLOCK)
    found = torch.empty(blocks, dtype=torch.int32, device=source.device)

    def call():
        read_words[(blocks,)](source, found, STEPS=STEPS, BLOCK=BLOCK, num_warps=4)
        return found
    return call
