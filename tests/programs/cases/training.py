"""Faults that a training loop meets: hooks, the life of a process, compilers, shapes of loops."""

from __future__ import annotations

from tests.programs.cases.case import Case

HOOKS = (
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
        "Any order and any number give the same bytes; a wrong guess costs time. Limit: where "
        "memory is short, a map that only nn.ReLU and the max pooling behind it have saved is kept "
        "as signs; who asks a node for its values by hand is told so by an error.",
        (
            "autograd.graphs.walked_three_times",
            "autograd.graphs.gradients_of_some_inputs",
            "autograd.graphs.functions_of_the_user",
            "autograd.graphs.saved_tensors_read_by_hand",
            "tests/host/test_rectified.py::"
            "test_whoever_asks_for_the_values_is_told_that_they_are_gone",
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
        "The same RuntimeError. Limit: if the program has dropped x as well, the gradient is that "
        "of the graph as it was built, for nothing of ours keeps x alive.",
        (
            "tests/host/test_inplace_misuse.py::"
            "test_what_was_detached_in_place_is_used_or_rejected_as_stock_does",
            "tests/host/test_limits.py::"
            "test_an_input_that_was_detached_in_place_and_dropped_is_not_noticed",
        ),
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

LIFE = (
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
        "one graph must fit; where they do not, the last line of the run says so.",
        (
            "compiled.dynamo.whole_graph",
            "compiled.dynamo.three_shapes",
            "compiled.dynamo.graph_breaks",
            "compiled.dynamo.inductor",
            "tests/host/test_shortage.py::"
            "test_the_last_line_says_that_what_is_compiled_whole_must_fit",
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
        "Nothing moves during a capture, and a graph's memory never does. "
        'torch.compile(mode="reduce-overhead") warms up, records, replays and rewinds its graphs '
        "as ever. Limit: their memory is theirs until all of them are gone.",
        (
            "cuda.graphs.captured_step_beside_eager_training",
            "cuda.graphs.graphed_part_of_a_model",
            "tests/gpu/test_graphs.py::"
            "test_replays_and_training_under_pressure_leave_each_other_alone",
            "tests/gpu/test_graphs.py::test_training_under_pressure_is_right_after_a_capture_that_failed",
            "tests/gpu/test_graph_trees.py::test_training_and_inference_of_several_sizes_in_turns",
            "tests/gpu/test_graph_trees.py::test_a_graph_is_recorded_behind_one_that_was_replayed",
            "tests/gpu/test_graph_trees.py::test_feature_maps_move_beside_a_compiled_part",
        ),
    ),
)

LOOPS = (
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
