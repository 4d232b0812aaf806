"""Kinds of faults that programs which manage memory under PyTorch have had, what vdnn_alloc does
in each, and the tests that show it. A test of tests/programs is called by its module and name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One kind of fault."""

    fault: str
    here: str
    """What holds; a limit, with its reason, if that is less than what stock PyTorch gives."""
    tests: tuple[str, ...]
    """"file::test", or the name of a program."""


_DATA = (
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
        "It serves others. Work that was on the stream when it was destroyed is taken to be done, "
        "for nobody can wait for it any more: synchronize before, as torch.cuda.ExternalStream "
        "asks.",
        (
            "cuda.streams.stream_of_another_library",
            "tests/native/test_device.cpp::frames_freed_on_a_stream_that_is_gone_serve_others",
            "tests/native/test_fence.cpp::a_handle_that_comes_back_is_a_stream_again",
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

_HOOKS = (
    Case(
        "Autograd's check for in-place changes was lost, and gradients were silently wrong.",
        "The same RuntimeError, for every saved tensor, moved or not. Limit: where a view of "
        "several outputs (unbind, chunk, split) was saved and its base changed, the error has the "
        "words of the general case.",
        (
            "autograd.misuse.activation_changed",
            "autograd.misuse.parameter_stepped_too_early",
            "autograd.misuse.one_of_several_views_changed",
            "tests/host/test_inplace_misuse.py::"
            "test_every_misuse_is_rejected_while_vdnn_alloc_serves",
            "tests/host/test_inplace_misuse.py::test_a_misuse_is_rejected_of_a_tensor_that_had_moved",
            "tests/host/test_access_guard.py::"
            "test_overwriting_what_is_away_is_rejected_in_autograds_words",
        ),
    ),
    Case(
        "torch.func refused to run under saved-tensor hooks that are always on.",
        "Our hooks step aside for the transform and come back; what is saved inside does not move.",
        (
            "autograd.transforms.per_sample_gradients",
            "autograd.transforms.transforms_inside_a_forward",
            "autograd.transforms.refused_beside_hooks_of_the_user",
            "tests/host/test_transforms.py::test_the_hooks_are_back_after_a_transform",
        ),
    ),
    Case(
        "Module backward hooks broke in-place ReLU, residual sums and tracing.",
        "There are none: backward is recognised by what it unpacks.",
        (
            "models.convolutional.residual_in_place",
            "models.convolutional.in_place_everything",
            "models.convolutional.dense",
            "compiled.torchscript.traced_saved_and_loaded",
        ),
    ),
    Case(
        "A checkpointed region's recomputation used what had been freed, or other random numbers.",
        "Both kinds, nested, selective and with dropout give the same bits. What is saved under "
        "the newer kind's own hooks does not move.",
        (
            "autograd.checkpoints.with_reentry",
            "autograd.checkpoints.without_reentry",
            "autograd.checkpoints.nested",
            "autograd.checkpoints.selective",
            "autograd.checkpoints.exception_in_the_second_run",
        ),
    ),
    Case(
        "Saved-tensor hooks belong to a thread, and others had none, or an unbalanced stack.",
        "A thread has them from its first module on. Limit: what a thread saves before that, or "
        "without any module, does not move; it is right.",
        (
            "processes.threads.in_a_thread",
            "processes.threads.two_models_at_once",
            "processes.threads.threads_inside_a_forward",
            "cuda.streams.data_parallel",
            "tests/native/test_pressure.cpp::a_restored_block_stays_no_longer_than_its_thread",
        ),
    ),
    Case(
        "Saved tensors were asked for in another order, twice, or by hand.",
        "Any order and any number give the same bytes; a wrong guess costs time.",
        (
            "autograd.graphs.walked_three_times",
            "autograd.graphs.gradients_of_some_inputs",
            "autograd.graphs.functions_of_the_user",
            "autograd.graphs.saved_tensors_read_by_hand",
        ),
    ),
    Case(
        "Tensors that hooks kept were never freed.",
        "Graphs without a backward are gone as soon as they are dropped, with no collection.",
        (
            "autograd.graphs.dropped_tensors_are_gone",
            "tests/host/test_leaves_nothing.py::test_nothing_is_left_once_everything_is_deleted",
            "tests/host/test_leaves_nothing.py::test_fifty_repetitions_grow_nothing",
        ),
    ),
    Case(
        "A hook on the saved tensor of one node (grad_fn._raw_saved_x.register_hooks).",
        "Limit: it raises, for torch allows one pair of hooks on a saved tensor and ours is there. "
        "torch.autograd.graph.saved_tensors_hooks works.",
        ("tests/host/test_limits.py::test_hooks_on_one_saved_tensor_are_refused",),
    ),
    Case(
        "A tensor that was saved as an input is detached in place (x.detach_()) before backward.",
        "Limit: stock PyTorch raises; here the gradient is that of the graph as it was built. "
        "Nothing of x itself is kept that could tell, for a kept x would never be freed.",
        ("tests/host/test_limits.py::test_an_input_that_was_detached_in_place_is_not_noticed",),
    ),
    Case(
        "What a program hung on a parameter was gone from ctx.saved_tensors.",
        "A trainable parameter is handed out itself. Limit: what hangs on a frozen weight, or on "
        "another leaf, is not on the tensor that ctx.saved_tensors gives.",
        (
            "autograd.graphs.attributes_of_saved_parameters",
            "tests/host/test_limits.py::"
            "test_attributes_of_a_frozen_weight_are_not_on_what_was_saved",
        ),
    ),
)

_ALLOCATOR = (
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

_HOST = (
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
)

_LIFE = (
    Case(
        "A forked child hung on its parent's locks, or wrote into its memory.",
        "In a child torch's own allocator serves. Limit: a child cannot run the backward of a "
        "graph that its parent built, and says so.",
        (
            "processes.children.loader_with_workers",
            "processes.children.autograd_inside_the_workers",
            "processes.children.forked_child_in_mid_training",
            "processes.children.os_fork",
            "tests/host/test_processes.py::"
            "test_what_dataloader_workers_write_never_reaches_the_parent",
        ),
    ),
    Case(
        "The allocator's lock and Python's were taken in both orders.",
        "The library never takes Python's lock: it decides in C++, and drops its own around waits.",
        (
            "processes.threads.beside_busy_threads",
            "tests/native/test_device.cpp::threads_allocate_save_and_restore_under_pressure",
            "tests/native/test_access_guard.cpp::threads_that_hold_blocks_press_on_each_other",
        ),
    ),
    Case(
        "The process ended, or the tool was taken out, at a bad time.",
        "There is no thread of ours that runs Python. Limit: it cannot be taken out, for tensors "
        "live in its memory; it ends with the process.",
        (
            "tests/host/test_processes.py::"
            "test_an_unchanged_script_trains_under_the_environments_budget",
            "tests/native/test_cuda_driver.cpp::"
            "once_the_driver_has_shut_down_ordering_is_silently_over",
        ),
    ),
    Case(
        "torch.compile traced global hooks, refused them, or compiled again and again.",
        "No graph and no break more than without us. Limit: the feature maps of a model that is "
        "one graph must fit.",
        (
            "compiled.dynamo.whole_graph",
            "compiled.dynamo.three_shapes",
            "compiled.dynamo.graph_breaks",
            "compiled.dynamo.inductor",
        ),
    ),
    Case(
        "A user's dispatch mode, which counts or rewrites operators, saw the tool's own.",
        "It sees the program's. Limit: the number of aten.detach differs, for torch itself makes "
        "fewer in forward and more in backward under saved-tensor hooks, and ours are among them.",
        ("tensors.modes.operators_counted", "tensors.modes.arithmetic_counted"),
    ),
    Case(
        "Memory moved during the capture of a CUDA graph, or under its replay.",
        "Nothing moves during a capture, and a graph's memory never does. Limit: "
        'torch.compile(mode="reduce-overhead") rewinds the allocator, and is refused.',
        (
            "cuda.graphs.captured_step_beside_eager_training",
            "cuda.graphs.graphed_part_of_a_model",
            "tests/gpu/test_graphs.py::"
            "test_replays_and_training_under_pressure_leave_each_other_alone",
            "tests/gpu/test_graphs.py::test_training_under_pressure_is_right_after_a_capture_that_failed",
        ),
    ),
)

_LOOPS = (
    Case(
        "The plan was learned in a first pass without gradients.",
        "Only what autograd saves is learned, and learned anew when it changes.",
        (
            "loops.between_steps.validation_first",
            "loops.between_steps.evaluation_between_steps",
            "loops.between_steps.samples_between_steps",
            "tests/unit/test_episodes.py::test_an_evaluation_does_not_unlearn_the_order_of_training",
        ),
    ),
    Case(
        "The order of layers changed: layer drop, experts, a branch that comes later.",
        "What was not expected is brought back on demand.",
        (
            "models.attention.random_experts",
            "models.attention.routed_experts",
            "models.attention.layer_drop",
            "models.attention.early_exit",
            "models.attention.branch_that_comes_later",
            "loops.memory.no_module_at_all",
        ),
    ),
    Case(
        "The backward never came: a dropped loss, an exception, a part of the outputs.",
        "State is held by the graph, and goes with it.",
        (
            "loops.interrupted.loss_that_is_not_finite_is_skipped",
            "loops.interrupted.exception_in_forward",
            "loops.interrupted.exception_in_backward",
            "loops.interrupted.interrupted_by_hand",
            "loops.interrupted.backward_of_one_head_only",
            "models.convolutional.frozen_encoder",
        ),
    ),
    Case(
        "One module ran hundreds of times in a forward; flat weights; autocast's weight cache.",
        "Records belong to storages, not to modules.",
        (
            "models.recurrent.lstm_cell_200_times",
            "models.recurrent.lstm",
            "models.recurrent.lstm_under_autocast_with_gradient_scaling",
            "models.recurrent.truncated_backpropagation_through_time",
        ),
    ),
)

CASES = (*_DATA, *_HOOKS, *_ALLOCATOR, *_HOST, *_LIFE, *_LOOPS)
