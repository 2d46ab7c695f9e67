"""Every kind of fault, how many of it make a full campaign, and what injects it."""

from __future__ import annotations

from tests.torture import faults_disks as disks
from tests.torture import faults_files as files
from tests.torture import faults_items as items
from tests.torture import faults_processes as processes
from tests.torture import faults_ranks as ranks
from tests.torture import faults_steps as steps
from tests.torture.campaign import Kind

KINDS: tuple[Kind, ...] = (
    Kind("maker killed", processes.killed_makers, 14, batch=5, short=2, slow=True),
    Kind("parent killed", processes.killed_parents, 6, batch=3, slow=True),
    Kind("all processes killed", processes.killed_and_reported, 2, batch=2, slow=True),
    Kind("maker stopped", processes.stopped_makers, 4, batch=2, slow=True),
    Kind("signal of a scheduler or user", processes.signalled, 6, batch=6, slow=True),
    Kind("out of time", processes.out_of_time, 2, batch=2, slow=True),
    Kind("rank killed", ranks.killed_ranks, 4, batch=2, slow=True),
    Kind("rank killed, others kept", ranks.killed_ranks_kept, 4, batch=2, slow=True),
    Kind("mpirun and all ranks killed", ranks.killed_trees, 3, batch=3, slow=True),
    Kind("rank stopped", ranks.stopped_rank, 2, slow=True),
    Kind("signal to ranks", ranks.signalled_ranks, 4, batch=4, slow=True),
    Kind("NaN or fault in a sample", items.bad_samples, 8, batch=4, short=4, slow=True),
    Kind("sample that hangs", items.hanging_items, 4, batch=2, short=2, slow=True),
    Kind("sample that ends its process", items.deadly_items, 4, batch=2, short=2, slow=True),
    Kind("NaN and nonsense in a structure", items.bad_structure, 10),
    Kind("cell too large", items.huge_cell, 2),
    Kind("killed while simulating", steps.killed_simulate, 24, batch=6),
    Kind("killed while draining", steps.killed_drain, 12, batch=6),
    Kind("killed while staging", steps.killed_stage, 6, batch=6),
    Kind("killed while merging", steps.killed_merge, 6, batch=6),
    Kind("killed while repairing", steps.killed_repair, 6, batch=6),
    Kind("run folder's disk full", disks.full_run_folder, 8),
    Kind("burst buffer full", disks.full_node, 5),
    Kind("disk full behind a burst buffer", disks.full_behind_a_node, 3),
    Kind("folder read-only", disks.read_only, 6),
    Kind("node wiped", disks.wiped_node, 4),
    Kind("staged copy damaged", disks.staged_copy_damaged, 6),
    Kind("shard truncated", files.truncated_shard, 6),
    Kind("shard with a flipped bit", files.flipped_shard, 16),
    Kind("shard removed", files.removed_shard, 3),
    Kind("shard emptied", files.empty_shard, 2),
    Kind("shard exchanged", files.exchanged_shard, 4),
    Kind("garbage with a shard's name", files.garbage_shard, 6),
    Kind("manifest torn", files.torn_manifest, 5),
    Kind("manifest with a flipped bit", files.flipped_manifest, 10),
    Kind("manifest lost", files.lost_manifest, 4),
    Kind("files left over", files.left_over_files, 4),
    Kind("record damaged", files.damaged_record, 6),
)
