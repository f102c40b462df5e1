"""What makes a failure impossible, or is done about it outside of checks and watches, by its id; and the test that
proves it, wherever it is.
"""

from __future__ import annotations

DESIGN = {
    "A8": (
        "paths in a config are resolved against its own folder",
        "test_A8_paths_do_not_depend_on_the_working_directory",
    ),
    "A9": (
        "a run takes the next free name and never opens another's directory",
        "test_A9_a_run_never_writes_over_another",
    ),
    "A11": ("every key is used or refused", "test_A11_no_key_is_silently_ignored"),
    "A12": (
        "other trainers' keys are in tables, and what is not there is not guessed; what a correction leads to is told "
        "with it",
        "test_A12_corrections_load_and_keep_the_meaning",
    ),
    "A13": (
        "what a file says and air does not know is asked for, never filled in",
        "test_A13_what_is_not_known_is_asked_for",
    ),
    "B6": (
        "sampled tokens are never tokenised again; on a rewrite the transcript forks",
        "test_B6_sampled_tokens_stay_as_sampled_and_a_rewrite_forks",
    ),
    "B7": (
        "only what follows a reply is rendered and appended; no tools and an empty list are one prompt",
        "test_B7_what_stands_between_replies_is_what_the_template_writes",
    ),
    "C2": ("logits are computed in chunks and never all at once", "test_C2_logits_are_never_held_in_full"),
    "C7": (
        "child processes are started anew, or forked from one with a single thread that never touched CUDA",
        "test_C7_no_process_is_forked",
    ),
    "D1": ("all state of an episode is its own", "test_D1_sixty_four_episodes_at_once_each_get_all_their_turns"),
    "D2": ("a file is checked by its own language", "test_D2_python_is_not_read_as_shell"),
    "D3": (
        "the first command runs, the others are named",
        "test_D3_of_several_commands_the_first_runs_and_the_others_are_named",
    ),
    "D4": ("a session starts from a checked snapshot", "test_D4_the_commands_are_there_after_a_hundred_resets"),
    "D7": (
        "infrastructure errors are typed: retried, then dropped and counted",
        "test_D7_a_sandbox_that_fails_in_one_of_ten_episodes_is_no_reward_and_harms_no_other",
    ),
    "D8": (
        "answers and graders are outside the agent's sandbox",
        "test_D8_answers_graders_and_opponents_are_outside_the_agents_sandbox",
    ),
    "D9": ("every wait has a deadline", "test_D9_a_hung_command_holds_nothing"),
    "D10": ("what a crash left is reaped at the next start", "test_D10_what_a_crash_leaves_is_reaped"),
    "D11": (
        "in every environment a no-op earns nothing, and a cheat next to nothing",
        "test_D11_doing_nothing_earns_nothing_and_a_cheat_next_to_it",
    ),
    "D12": (
        "in every environment an oracle solves the tasks through the tools alone",
        "test_D12_an_oracle_that_acts_through_the_tools_alone_solves_each_family",
    ),
    "D13": (
        "what an oracle answers is marked right in every environment",
        "test_D13_what_an_oracle_answers_is_marked_right",
    ),
    "D14": ("one workspace for each episode", "test_D14_parallel_episodes_of_one_task_share_nothing"),
    "D15": (
        "a score belongs to an artefact of this attempt",
        "test_D15_a_score_belongs_to_an_artefact_of_this_attempt",
    ),
    "D17": (
        "the agent's code never runs in the grader's process",
        "test_D17_the_agents_code_never_runs_in_the_graders_process",
    ),
    "D19": (
        "every episode ends on one path, with its score",
        "test_D19_the_last_reward_is_given_however_an_episode_ends",
    ),
    "E3": (
        "an error in a reward stops the run with its trajectory",
        "test_E3_a_grader_that_throws_stops_the_run_with_the_trajectory",
    ),
    "E5": (
        "tasks come shuffled by the seed, and curves are kept for each family",
        "test_E5_tasks_sorted_by_difficulty_come_shuffled_and_each_family_has_its_curve",
    ),
    "E6": (
        "`air compare` refuses unequal rows, modes and samplings, and prints intervals",
        "test_E6_unequal_rows_are_refused_and_named",
    ),
    "E8": (
        "sampling and training take turns, so slow episodes are waited for; what is lost is counted by duration",
        "test_E8_what_is_lost_among_the_slow_is_seen_in_the_ledger",
    ),
    "E10": (
        "environments say which metric is success; it comes before the reward wherever results are shown, chosen or "
        "compared",
        "test_E10_the_end_of_the_run_says_it_too",
    ),
    "E12": (
        "Student's t and exact tests over tasks, one smallest number of them everywhere, a stricter level where seeds "
        "are added after a verdict was seen",
        "test_E12_chance_is_called_a_difference_once_in_twenty_at_most",
    ),
    "F1": (
        "what is seen and what is trained are two arrays, and attention only knows the first",
        "test_F1_what_the_loss_counts_changes_nothing_of_what_the_model_sees",
    ),
    "F3": (
        "a token is trained if and only if it was sampled, once",
        "test_F3_a_token_is_trained_if_and_only_if_it_was_sampled",
    ),
    "F6": (
        "log-probs are recorded with every sampled token",
        "test_F6_logprobs_are_recorded_with_every_sampled_token_and_used_in_every_pass",
    ),
    "F8": (
        "a perturbation is scaled to its effect, and gaps are held against the rounding of the same network, measured",
        "test_F8_a_healthy_network_that_amplifies_rounding_passes",
    ),
    "G1": (
        "what a child writes before it hangs or dies is in the main log, and in the error that its loss causes",
        "test_G1_the_last_words_of_a_worker_that_died_are_in_the_main_log",
    ),
    "G2": (
        "killed at any moment, a run resumes to the same end",
        "test_G2_killed_while_a_checkpoint_is_written_a_run_resumes_to_the_same_end",
    ),
    "G3": ("an export is loaded again and compared", "test_G3_a_whole_export_is_the_trained_policy"),
    "G4": (
        "files appear whole or not at all; a full disk stops the run, which goes on when there is room",
        "test_G4_a_run_whose_disk_fills_up_stops_with_a_sentence_and_goes_on_when_there_is_room",
    ),
    "G5": ("every episode ends in exactly one saved record", "test_G5_however_an_episode_ends_it_is_saved_once"),
    "G6": (
        "the policy's version is recorded with every turn, when it is sampled",
        "test_G6_the_policys_version_is_recorded_with_every_turn_when_it_is_sampled",
    ),
    "G7": (
        "an engine that fails fails every request at once, with its cause; the run stops with everything saved",
        "test_G7_an_engine_that_dies_is_an_alarm_within_seconds",
    ),
    "G8": (
        "a name holds the episode's place in its step",
        "test_G8_thousands_of_episodes_of_one_second_have_a_file_each",
    ),
    "G10": (
        "deadlines follow from measured speed, from progress and from what a process computes; what could not be had "
        "is not judged, with reason and forecast",
        "test_G10_an_engine_slower_than_the_probes_clock_is_waited_for",
    ),
    "G11": (
        "every phase over 10 s says what, how far and how long still, at least every 30 s; the first line comes first",
        "test_G11_every_long_phase_says_how_far_it_is",
    ),
    "G12": (
        "a step is sampled, updated, accepted; one that is refused is set aside and sampled anew, with other seeds",
        "test_G12_after_a_stop_the_step_is_sampled_anew_and_the_run_goes_on",
    ),
    "G13": (
        "whatever is left of a step has advantages; one without signal is recorded with a loss of 0 and no update",
        "test_G13_a_step_that_has_no_group_left_is_recorded_and_the_run_goes_on",
    ),
    "G14": (
        "nothing is timed before it has been done once; a run's time is put together from measured speeds",
        "test_G14_an_engine_that_is_slow_at_first_changes_no_forecast",
    ),
    "A14": (
        "all mistakes of a file, arguments of environments too, are told in one round with their lines",
        "test_A14_all_arguments_of_environments_in_one_round",
    ),
    "B11": (
        "the parser is told that the prompt has opened a thought",
        "test_B11_a_command_that_was_only_considered_does_not_run",
    ),
    "B12": (
        "tokens that mean something else to this model's tokenizer are encoded anew",
        "test_B12_episodes_of_another_model_are_said_in_this_ones_tokens",
    ),
    "B13": (
        "a model's own code is never run, and what has no end is refused within a second",
        "test_B13_a_model_that_needs_its_own_code_is_refused_without_a_question",
    ),
    "D22": (
        "the agent's sandbox is frozen while anything is graded, and has layers of its own",
        "test_D22_a_lock_of_graded_code_is_not_seen_by_what_the_agent_left_running",
    ),
    "D23": (
        "`validate` and the score are on disjoint halves, one grading a command, counted",
        "test_D23_an_agent_that_flips_answers_gains_nothing_on_the_scored_half",
    ),
    "D24": (
        "what is paid for is measured on collected files, in a fresh sandbox",
        "test_D24_the_quality_of_code_is_not_what_the_shell_says",
    ),
    "D25": (
        "each sandbox has a weight and a quota of the processor",
        "test_D25_forty_spinners_leave_a_neighbour_its_share",
    ),
    "D26": (
        "calls that take from such quotas are refused, or limited for each sandbox",
        "test_D26_no_watch_on_files_is_taken_from_others",
    ),
    "D27": (
        "a submission is bounded by the sample's size, and read outside the trainer",
        "test_D27_a_huge_table_is_refused_and_never_in_the_trainers_memory",
    ),
    "D28": (
        "every path of a task is inside its checkout or a directory that the user names",
        "test_D28_a_task_cannot_bring_files_of_this_machine_into_a_sandbox",
    ),
    "F9": (
        "gradients in few bits are added up in float32, a trained head's chunks too",
        "test_F9_gradients_in_few_bits_are_added_up_in_float32",
    ),
    "F10": ("an adapter is plain LoRA, or it is refused", "test_F10_an_adapter_is_computed_as_peft_does_or_refused"),
    "G15": ("a state holds tensors and JSON only", "test_G15_a_state_that_would_run_code_is_not_opened"),
    "G16": ("requests have deadlines, and whatever is read has a bound", "test_G16_half_sent_requests_keep_nobody_out"),
    "H1": (
        "a reply goes on at another server from its last whole token; a broken answer is asked for again",
        "test_H1_a_server_killed_in_the_middle_of_replies_loses_no_token",
    ),
    "H2": (
        "health is a token within its deadline; who gives none is left, ended and started anew, and its replies go on "
        "elsewhere",
        "test_H2_a_server_that_hangs_is_left_and_its_replies_go_on_elsewhere",
    ),
    "H3": (
        "who waits for a server says so, for 15 min at most; then the run ends with every server's reason, its last "
        "lines and a checkpoint, and `air train --resume` goes on",
        "test_H3_without_any_server_left_whoever_waits_is_told",
    ),
    "H4": (
        "a server stays paused until the update is whole: it is made again, and where that fails the server is started "
        "anew with the weights that are trained",
        "test_H4_an_update_that_fails_half_way_is_made_again_before_anything_is_asked",
    ),
    "H5": (
        "a server gets requests when its log-probs agree with the trainer's; one that does not agree is started anew",
        "test_H5_a_server_that_stays_one_version_behind_serves_nothing",
    ),
    "H6": (
        "an update clears caches, and the version is in every cache's key",
        "test_H6_what_a_cache_kept_of_the_weights_before_is_not_found_under_the_new_label",
    ),
    "H7": (
        "adapters of groups under way stay served, so a group has one version; where weights are replaced in place "
        "versions are counted for each token",
        "test_H7_a_group_is_sampled_by_the_version_that_it_was_begun_with",
    ),
    "H8": (
        "every wait of ranks has a deadline by what they took before; the error names the rank that does not come, its "
        "machine, its phase and lines, and what the others wait for",
        "test_H8_a_collective_that_hangs_is_told_with_the_rank_and_the_work",
    ),
    "H9": (
        "an adapter's name has the digest of its files: it is never changed, is pulled whole or refused, and loaded "
        "once",
        "test_H9_a_version_that_came_altered_is_not_served_until_it_comes_whole",
    ),
    "H10": (
        "without a sampler node the run goes on; the loss of a learner ends it with the node's name, and `air train "
        "--resume` goes on with the nodes that are left",
        "test_H10_a_lost_node_is_told_in_the_name_of_its_ranks",
    ),
    "H11": (
        "every start of a run has a number, which its processes have, too: whoever is of an earlier one stops before "
        "saving an episode, a step or a checkpoint",
        "test_H11_a_rank_of_an_earlier_session_writes_nothing",
    ),
    "H12": (
        "SIGTERM finishes the update under way, saves what was sampled and, where no update has begun, a checkpoint of "
        "the last step, and ends with 143",
        "test_H12_a_run_that_ends_early_has_a_checkpoint_of_its_last_step",
    ),
    "H13": (
        "admitted and trained groups are on disk: those under way are sampled to their end after a restart",
        "test_H13_nothing_is_lost_and_nothing_twice_through_failures",
    ),
    "H14": (
        "sampling beside training wants a trust region against the policy that sampled: `anchor`, or a mask",
        "test_H14_without_a_trust_region_against_the_sampler_it_is_refused",
    ),
    "H15": (
        "the bound decides what is admitted, nothing is discarded for its age, and groups are trained in the order of "
        "admission",
        "test_H15_a_long_episode_is_waited_for_and_the_others_go_on_meanwhile",
    ),
    "H16": (
        "replies are kept as ids in a forest of what was shown: a trained row is a request and its response",
        "test_H16_what_is_trained_is_what_was_sent_and_came_back",
    ),
    "H17": (
        "what is not waited for is cancelled and counted, a repeated request gets the stored reply, an edited history "
        "is another line, untrained, and a key opens its own episode only",
        "test_H17_a_client_that_hangs_up_ends_the_sampling_and_is_counted",
    ),
    "H18": (
        "it is trouble of the machinery and never a score: with a deadline, a new process for the next episode, its "
        "printing apart, and a missing key named before the run",
        "test_H18_a_worker_that_dies_or_hangs_is_no_score_and_harms_no_other_episode",
    ),
}
