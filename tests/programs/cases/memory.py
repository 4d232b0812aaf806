"""Faults of what becomes of memory: hazards of the data, the allocator's border, host memory."""

from __future__ import annotations

from tests.programs.cases.case import Case

DATA = (
    Case(
        "Memory was given away though code that passes no autograd hook still read it: a skip of a "
        "U-Net, a list of features, a detached map, numpy, DLPack, a bare address.",
        "What somebody holds stays, or leaves under the access guard and is back before an "
        "operator touches it; its address then shows host memory, never another tensor's.",
        (
            "models.convolutional.unet_flat",
            "models.convolutional.features_on_self",
            "tensors.storages.shared_with_numpy",
            "tensors.storages.shared_through_dlpack",
            "tensors.storages.read_by_address",
            "tensors.storages.written_after_it_was_released",
            "tensors.storages.storage_held_by_itself",
            "tensors.storages.copy_on_write_clones",
            "loops.between_steps.moving_average_of_weights",
            "cuda.kernels.triton_kernel",
            "tests/host/test_guarded_training.py::test_half_of_the_peak_is_enough_and_changes_no_bit",
            "tests/host/test_access_guard.py::test_the_program_sees_the_same_bytes",
            "tests/host/test_stray_touch.py::test_a_stray_touch_of_what_is_away_faults",
            "tests/gpu/test_guard.py::test_a_flat_unet_trains_within_half_of_its_peak",
        ),
    ),
    Case(
        "Memory was unmapped while kernels that use it were queued.",
        "A range is unmapped only after the CPU has seen its work complete, never in a free.",
        (
            "loops.memory.made_and_dropped",
            "tests/native/test_mapping_cache.cpp::"
            "an_idle_mapping_is_retired_only_when_its_use_was_seen_complete",
            "tests/native/test_replay.cpp::the_same_runs_pass_with_every_wait",
        ),
    ),
    Case(
        "Memory was reused while a side stream read it.",
        "A recorded stream's work is part of the fence that the next owner waits for; frames that "
        "one stream frees serve another only behind an event.",
        (
            "cuda.streams.batches_from_a_side_stream",
            "cuda.streams.two_branches_on_two_streams",
            "tests/native/test_device.cpp::"
            "a_recorded_stream_has_read_before_the_frames_are_written_again",
            "tests/native/test_device.cpp::"
            "frames_freed_on_a_stream_go_to_another_only_after_its_next_call",
            "tests/native/test_device.cpp::a_slab_is_seen_only_behind_its_waits",
            "tests/gpu/test_streams.py::"
            "test_record_stream_keeps_memory_from_reuse_until_the_stream_is_through",
        ),
    ),
    Case(
        "A stream of another library's was destroyed while memory that was freed on it waited.",
        "Nothing is asked of such a stream but by the calls made on it; where its work must be "
        "waited for, the whole device is. So work on one is slower where memory is short.",
        (
            "cuda.streams.stream_of_another_library",
            "tests/native/test_device.cpp::frames_freed_on_a_stream_that_is_gone_serve_others",
            "tests/native/test_fence.cpp::the_work_of_a_stream_that_is_gone_is_waited_for",
            "tests/native/test_fence.cpp::a_call_that_is_made_on_a_passing_stream_records_there",
        ),
    ),
    Case(
        "The first copy back, which nobody prefetched, did not wait for the copy out.",
        "Both ways back wait for the copy out; the first step is compared like all others.",
        (
            "tests/native/test_replay.cpp::a_missing_wait_shows",
            "tests/host/test_same_numbers.py::"
            "test_copies_that_finish_as_late_as_they_may_change_no_bit",
            "tests/gpu/test_training.py::test_under_pressure_the_bits_are_stocks_and_the_budget_holds",
        ),
    ),
    Case(
        "Tensors were known by their address, and the address came back as another's.",
        "A block is known by a number that is given once.",
        (
            "loops.memory.addresses_that_come_back",
            "tests/native/test_block_table.cpp::a_generation_is_never_given_twice",
            "tests/native/test_device.cpp::a_block_can_be_freed_while_it_is_away",
            "tests/native/test_device.cpp::asking_for_a_freed_block_is_an_error",
        ),
    ),
    Case(
        "One storage was known twice, and one record did not know of the other's references.",
        "Saves of one storage, from whatever thread, share a record; a block under two storages "
        "never moves.",
        (
            "tests/host/test_shared_storages.py::"
            "test_a_storage_that_threads_save_at_once_is_known_once",
            "tests/host/test_records.py::"
            "test_a_tensor_that_the_program_holds_stays_though_old_records_counted_it",
            "tests/native/test_access_guard.cpp::a_block_with_two_storages_stays",
        ),
    ),
    Case(
        "The wrong stream was waited for, or a host buffer was filled again too early.",
        "The current stream is asked for at each save and restore; host memory is written again "
        "only behind its last reader.",
        (
            "cuda.streams.forward_and_backward_on_other_streams",
            "tests/native/test_host_pool.cpp::"
            "freed_host_memory_is_written_again_only_behind_its_last_reader",
            "tests/native/test_replay.cpp::a_missing_wait_shows",
        ),
    ),
)

ALLOCATOR = (
    Case(
        "Questions about memory raised, and cudnn.benchmark did.",
        "All are answered, or refused in one sentence that says what to do.",
        (
            "tests/gpu/test_memory_questions.py::test_statistics_follow_one_tensor",
            "tests/gpu/test_memory_questions.py::test_summary_and_snapshot_list_what_is_alive",
            "tests/gpu/test_memory_questions.py::test_cudnn_may_search_for_engines",
        ),
    ),
    Case(
        "It was installed too late, twice, or where there is no GPU.",
        "One sentence that names the cause, and nothing is half installed; the same twice is "
        "nothing.",
        (
            "tests/gpu/test_bad_start.py::test_it_must_come_before_cuda",
            "tests/host/test_bad_input.py::"
            "test_installing_twice_is_nothing_if_the_same_and_an_error_if_not",
            "tests/host/test_bad_input.py::test_the_cuda_backend_without_a_gpu_says_so",
        ),
    ),
    Case(
        "Bits differed because libraries choose kernels by alignment or by free memory.",
        "Addresses are aligned as torch's are. Limit: a workspace that cannot fit at all is "
        "refused, and cuDNN then takes another engine; each refusal is counted by layer.",
        (
            "tests/native/test_heap.cpp::every_block_is_aligned_as_torch_wants_it",
            "tests/gpu/test_model_matrix.py::test_the_numbers_are_stocks",
        ),
    ),
    Case(
        "expandable_segments, another backend or no caching was set, and nothing was freed.",
        "Refused, with the variable named.",
        ("tests/gpu/test_bad_start.py::test_a_setting_that_conflicts_is_named",),
    ),
    Case(
        "CUDA tensors were sent to another process.",
        "Limit: refused at the sender in one sentence, for memory that is mapped has no classic "
        "handle, and one that is shared could not move.",
        ("tests/gpu/test_memory_questions.py::test_what_cannot_be_right_is_refused",),
    ),
    Case(
        "A create, map, set-access, pin or copy failed half way, and memory was lost or unmapped "
        "twice.",
        "The call is undone, the data is where it was, and the same can be asked for again.",
        (
            "tests/native/test_faults.cpp::any_map_may_fail",
            "tests/native/test_faults.cpp::any_copy_in_may_fail",
            "tests/native/test_held_faults.cpp::any_switch_to_frames_may_fail",
            "tests/native/test_device.cpp::a_slab_whose_wait_is_refused_is_no_slab",
            "tests/host/test_faults.py::"
            "test_a_refusal_is_absorbed_or_surfaces_and_training_goes_on_bit_for_bit",
        ),
    ),
    Case(
        "Out of memory was an exception of another type, a null pointer, or the program's end.",
        "torch.OutOfMemoryError that begins as torch's does, in forward, backward and from "
        "autograd's threads; it says what each layer owns; a smaller batch trains on.",
        (
            "loops.interrupted.smaller_batch_after_running_out",
            "loops.interrupted.batch_is_split_after_running_out",
            "tests/native/test_pressure.cpp::the_error_tells_what_each_layer_owns",
            "tests/native/test_pressure.cpp::a_request_that_cannot_fit_evicts_nothing",
            "tests/gpu/test_out_of_memory.py::test_the_error_is_typed_and_names_the_sizes",
            "tests/gpu/test_out_of_memory.py::"
            "test_a_smaller_batch_trains_after_the_error_with_stocks_numbers",
        ),
    ),
    Case(
        "Each small tensor took a page of its own, or what was freed could not be used again.",
        "Small tensors share frames; any free frames serve any request. Limit: sizes of a few "
        "frames that never move and change from step to step waste more (jagged tensors).",
        (
            "loops.memory.many_small_tensors",
            "loops.memory.sizes_that_change",
            "tensors.kinds.nested_tensors",
            "tests/native/test_device.cpp::a_tiny_block_shares_frames",
        ),
    ),
    Case(
        "Nothing was saved: copies were made, but the memory stayed.",
        "The driver's own count stays within the budget. A bus that is the limit shows in the dump "
        "(late_prefetches, moved) and is no warning, for a program must not see one that stock "
        "does not give.",
        (
            "tests/host/test_same_numbers.py::"
            "test_the_budget_is_never_passed_by_our_count_or_by_the_kernels",
            "tests/host/test_same_numbers.py::"
            "test_a_chain_moves_hardly_more_bytes_than_the_budget_lacks",
            "tests/gpu/test_training.py::"
            "test_the_driver_itself_never_sees_more_than_the_budget_in_use",
        ),
    ),
)

HOST = (
    Case(
        "A container's limit was not seen, and the kernel ended the process.",
        "The least over all its cgroups counts, of both versions; what cannot be read leaves half.",
        (
            "tests/unit/test_host_memory.py::test_the_limit_less_the_use_counts",
            "tests/unit/test_host_memory.py::test_a_tighter_parent_counts",
            "tests/unit/test_host_memory.py::test_version_1_counts_too",
            "tests/unit/test_host_memory.py::test_no_limit_leaves_the_machine",
            "tests/unit/test_host_memory.py::test_a_limit_that_cannot_be_read_leaves_half",
        ),
    ),
    Case(
        "Page-locked buffers were rounded up to powers of two.",
        "Copies have exact sizes, in slabs of whole copies that grow with use.",
        ("tests/native/test_host_pool.cpp::what_is_page_locked_is_hardly_more_than_what_is_away",),
    ),
    Case(
        "The machine refused to lock pages, or to map so many buffers.",
        "Few slabs, not one a copy. A refusal ends offloading, the error says host, and what fits "
        "without it still runs.",
        (
            "tests/native/test_faults.cpp::any_pin_may_fail",
            "tests/native/test_cuda_driver.cpp::refused_page_locking_says_host_and_keeps_nothing",
            "tests/native/test_pressure.cpp::without_host_memory_the_error_says_host",
        ),
    ),
    Case(
        "Several GPUs: no peer access after a remap, another device was current, a wait for the "
        "whole device against a collective; page-locked memory on the far NUMA node.",
        "Every peer has access from the moment that memory is mapped. Not shown: all tests run on "
        "one GPU.",
        (),
    ),
)
