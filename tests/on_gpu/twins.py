"""The replacement of each test of this suite without a GPU: a test of `make test`, or the reason why there is none."""

#: By the name of the test: ``file::test`` below ``tests``, or a sentence.
TWINS = {
    "test_a_layers_gpu_time_is_its_own": "step/test_planted_time.py::test_a_sleep_belongs_to_its_layer_and_its_phase",
    "test_the_optimizers_gpu_time_belongs_to_no_layer": (
        "step/test_planted_time.py::test_a_sleep_belongs_to_its_layer_and_its_phase"
    ),
    "test_the_step_lasts_to_the_end_of_its_work": (
        "step/test_devices.py::test_a_step_is_timed_to_the_end_of_all_of_its_work"
    ),
    "test_work_on_a_side_stream_counts": "step/test_devices.py::test_a_step_is_timed_to_the_end_of_all_of_its_work",
    "test_a_copy_to_the_gpu_is_a_phase": "findings/test_rules.py::test_advice_on_copies",
    "test_a_profile_adds_up": "gpu/test_public_traces.py::test_tables_add_up",
    "test_step_times_agree_with_torchs_benchmark": (
        "Two clocks are compared; on a CPU, make accuracy compares them with the machine's own."
    ),
    "test_gpu_time_of_a_trace_agrees_with_a_naive_count": (
        "gpu/test_gpu_time.py::test_a_public_trace_has_the_times_that_another_tool_found"
    ),
    "test_an_ab_test_of_equal_steps_is_not_decided": "Judges times; on a CPU, make accuracy has its twin.",
    "test_the_demo_of_readme_runs_on_a_gpu": "gpu/test_gpu.py",
    "test_many_tiny_kernels_are_launch_bound": (
        "findings/test_gpu.py::test_many_short_gaps_are_launch_overhead_even_if_they_are_most_of_the_step"
    ),
    "test_an_item_in_the_loop_is_synchronisation": (
        "findings/test_gpu.py::test_idle_time_has_one_cause_and_adds_up_with_the_work_to_the_step"
    ),
    "test_copies_that_the_gpu_waits_for_are_found": "findings/test_rules.py::test_advice_on_copies",
    "test_large_products_in_float32_are_compute_bound": (
        "findings/test_proposed_code.py::test_lower_precision_is_advised_where_the_gpu_has_units_for_it"
    ),
    "test_slow_loading_is_input_bound": "findings/test_host.py::test_a_wait_inside_the_step_is_a_part_of_its_time",
    "test_no_bound_exceeds_the_step": "findings/test_of_traces.py::test_every_trace_is_argued",
    "test_bytes_by_category_add_up_to_what_the_allocator_counts": (
        "Only a GPU's allocator counts what it holds; on the CPU the recorded allocations are the only source."
    ),
    "test_at_the_end_of_each_phase_the_bytes_are_the_allocators": (
        "Only a GPU's allocator counts what it holds; on the CPU the recorded allocations are the only source."
    ),
    "test_the_peak_is_the_allocators": "Only a GPU's allocator keeps its own peak.",
    "test_an_estimate_is_near_the_truth": "memory/test_estimate_steps.py",
    "test_growth_is_found": "memory/test_leaks.py",
    "test_a_step_that_runs_out_of_memory_shows_who_has_it": "memory/test_memory.py",
    "test_the_ceiling_of_arithmetic_is_a_plain_products": "Judges a rate; on a CPU, make accuracy has its twin.",
    "test_the_ceiling_of_memory_is_a_plain_copys": "Judges a rate; on a CPU, make accuracy has its twin.",
    "test_telemetry_agrees_with_nvidia_smi": "telemetry/test_nvml.py::test_values_and_facts",
    "test_readings_of_the_chips_counters_or_why_there_are_none": "telemetry/test_gpm.py",
    "test_the_system_check_sees_the_gpu": "system/test_read_gpus.py",
    "test_a_lever_computes_what_it_should_and_is_undone": (
        "remedies/test_each_lever.py::test_what_each_lever_computes"
    ),
    "test_the_counts_of_a_fused_optimizer_are_on_the_gpu_only_while_it_is_on": (
        "A CPU's fused update reads counts on the CPU, where they are."
    ),
}
