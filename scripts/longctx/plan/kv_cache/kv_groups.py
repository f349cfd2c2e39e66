"""vLLM's KV cache of a model: one page per layer and block, layers in groups, one pool of blocks per rank.

Follows vLLM 0.32 (v1/kv_cache_interface.py, v1/core/kv_cache_utils.py). Every group takes its blocks from the same
pool, and a block has one page for each layer of a group. So all pages are made equal, and groups have equal numbers of
layers. A sequence takes the sum of its groups' blocks. One block of the pool is vLLM's null block. Pipeline stages have
pools of their own with equally many blocks; the groups are those of the whole model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

PageKind = Literal["full", "window", "chunk", "state"]
LONGEST_TOKENS = 2**40  # a cache that holds so many is not what limits a sequence


@dataclass(frozen=True, slots=True)
class CachePage:
    """How one layer's cache is paged on one rank.

    `tokens` and `page_bytes` are those of one page. `span` is the window or the chunk in tokens; of a state, the pages
    that one sequence keeps. `packed`: pages of several sizes lie side by side in one block (DeepSeek V4).
    """

    kind: PageKind
    tokens: int
    page_bytes: int
    span: int = 0
    packed: bool = False

    def pages(self, sequence: int, in_flight: int, context_ranks: int) -> int:
        """Return the pages of a sequence of so many tokens.

        `in_flight` tokens are scheduled and not yet freed: vLLM frees what left a window only when its step has ended.
        A window may begin inside a block, hence one page more. Context parallelism shards full attention only.
        """
        match self.kind:
            case "state":
                return self.span
            case "window":
                return ceil(min(self.span - 1 + in_flight, sequence) / self.tokens) + 1
            case "chunk":
                return ceil(min(self.span + in_flight, sequence) / self.tokens)
            case _:
                return ceil(ceil(sequence / context_ranks) / self.tokens)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share one block table: the page that says how many blocks a sequence takes, and each layer's bytes.

    `stage_bytes` are the bytes of one block in each pipeline stage.
    """

    page: CachePage
    stage_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CachePool:
    """The groups of a model, and what its sequences take of the pool."""

    groups: tuple[CacheGroup, ...]
    in_flight: int
    context_ranks: int

    def blocks(self, sequence: int) -> int:
        """Return the blocks that a sequence of so many tokens takes."""
        return sum(group.page.pages(sequence, self.in_flight, self.context_ranks) for group in self.groups)

    @property
    def block_bytes(self) -> tuple[int, ...]:
        """Return the bytes of one block in each pipeline stage: those of its fullest group."""
        return tuple(map(max, zip(*(group.stage_bytes for group in self.groups), strict=True)))

    def usable_blocks(self, kv_bytes: Iterable[int]) -> int:
        """Return the blocks for sequences in the smallest stage's pool, given each stage's bytes."""
        pools = (max(0, size) // block for size, block in zip(kv_bytes, self.block_bytes, strict=True) if block)
        return max(0, min(pools) - 1)

    def longest_sequence(self, kv_bytes: Sequence[int]) -> int | None:
        """Return the tokens of the longest sequence that fits, 0 where none does, None where nothing limits it."""
        if not self.groups:
            return None
        blocks, fitting, refused = self.usable_blocks(kv_bytes), 0, LONGEST_TOKENS
        if self.blocks(refused) <= blocks:
            return None
        while refused - fitting > 1:  # blocks never fall with the length
            middle = (fitting + refused) // 2
            fitting, refused = (middle, refused) if self.blocks(middle) <= blocks else (fitting, middle)
        return fitting

    def needed_bytes(self, sequence: int) -> tuple[int, ...]:
        """Return the KV cache in bytes that each stage must have for such a sequence, the null block included."""
        return tuple(block * (self.blocks(sequence) + 1) for block in self.block_bytes)


def group_layers(stages: Sequence[Sequence[CachePage]]) -> tuple[CacheGroup, ...]:
    """Return the groups of a model from the pages of the caches in each pipeline stage, in the model's order."""
    caches = [(stage, page) for stage, pages in enumerate(stages) for page in pages]
    if any(page.packed for _, page in caches):
        return _packed_groups(caches, len(stages))
    if len({(page.kind, page.span, page.tokens, page.kind == "state" and page.page_bytes) for _, page in caches}) <= 1:
        buckets, layers = [caches] if caches else [], len(caches)  # one kind: one group, whatever the pages' sizes
    else:
        alike: dict[CachePage, list[tuple[int, CachePage]]] = {}
        for stage, page in _equal_pages(caches):
            alike.setdefault(page, []).append((stage, page))
        buckets = list(alike.values())
        fewest, most = min(map(len, buckets)), max(map(len, buckets))
        layers = most if most < 1.5 * fewest else fewest
    groups = []
    for bucket in buckets:
        count = ceil(len(bucket) / layers)
        groups += [_group(bucket[first::count], len(stages)) for first in range(count)]
    return tuple(groups)


def _group(members: Sequence[tuple[int, CachePage]], stages: int) -> CacheGroup:
    """Return the caches, each of a stage, as one group."""
    totals = (sum(page.page_bytes for at, page in members if at == stage) for stage in range(stages))
    return CacheGroup(members[0][1], tuple(totals))


def _packed_groups(caches: Iterable[tuple[int, CachePage]], stages: int) -> tuple[CacheGroup, ...]:
    """Return the groups of caches whose pages have several sizes (vLLM's _get_packed_kv_cache_groups).

    Alike caches make a bucket. One with equally many pages of each size repeats a pattern; such buckets are cut into
    groups of nearly equal numbers of repeats, at least those of the largest bucket of several sizes.
    """
    buckets: dict[tuple[object, ...], dict[int, list[tuple[int, CachePage]]]] = {}
    for stage, page in caches:
        bucket = buckets.setdefault((page.kind, page.span, page.tokens), {})
        bucket.setdefault(page.page_bytes, []).append((stage, page))
    repeats = {key: max(map(len, sizes.values())) for key, sizes in buckets.items()}
    balanced = {key for key, sizes in buckets.items() if len(set(map(len, sizes.values()))) == 1}
    fewest = max((repeats[key] for key in balanced if len(buckets[key]) > 1), default=0)
    known = [repeats[key] for key in balanced]
    best = min(  # the least padding; of equal ones the largest
        range(fewest, max([fewest, *known]) + 1), key=lambda n: (sum(-count % n for count in known), -n)
    ) if fewest else 0  # fmt: skip
    groups = []
    for key, sizes in buckets.items():
        count = ceil(repeats[key] / best) if best and key in balanced else 1
        for first in range(count):
            groups.append(_group([cache for alike in sizes.values() for cache in alike[first::count]], stages))
    return tuple(groups)


def _equal_pages(caches: Iterable[tuple[int, CachePage]]) -> list[tuple[int, CachePage]]:
    """Return the caches with pages of one size: smaller ones take more tokens, or are padded where that is uneven."""
    known = list(caches)
    largest = max(page.page_bytes for _, page in known)

    def enlarged(page: CachePage) -> CachePage:
        if page.kind == "state" or largest % page.page_bytes:
            return replace(page, page_bytes=largest)
        return replace(page, page_bytes=largest, tokens=page.tokens * (largest // page.page_bytes))

    return [(stage, enlarged(page)) for stage, page in known]
