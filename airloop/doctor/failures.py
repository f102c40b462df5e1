"""The failures that this project answers, by id: what goes wrong, and what makes it impossible where that is so.

What is looked for before a run is in the registry of checks, what is looked at while it goes on in that of alarms;
`python -m airloop.doctor.catalogue` puts the three together.
"""

from __future__ import annotations

WHAT = {
    "A1": "a key stands in the wrong section",
    "A2": "a key that another tool knows",
    "A3": "a single value where a table is expected",
    "A4": "prompt and `max_tokens` together are longer than the context",
    "A5": "the batch cannot be split into whole groups, or a group has one member",
    "A6": "the context ends episodes long before `max_turns`",
    "A7": "a credential is missing, and found to be after the model has loaded",
    "A8": "files are found only when started from one directory",
    "A9": "a second run writes over the first",
    "A10": "the learning rate is too small for any visible update",
    "A11": "a key is accepted and ignored",
    "A12": "a correction is itself refused, or changes what was meant",
    "A13": "after all corrections it is another run than the user's",
    "A14": "an environment's arguments are refused one at a time, without file and line",
    "B1": "a vision-language checkpoint is given to a text trainer",
    "B2": "the installed transformers does not know the model type",
    "B3": "the model's name is on no hub and in no directory",
    "B4": "the model never writes an action that can be read",
    "B5": "the chat template takes one tool call only",
    "B6": "the chat template rewrites what was sampled earlier",
    "B7": "rendering again is no extension: a separator is lost, an empty list of tools changes the prompt",
    "B8": "the tokenizer is another model's",
    "B9": "replies never stop before `max_tokens`",
    "B11": "the template opens a thought, the reply is cut inside it, and a command that was only considered runs",
    "B12": "episodes of another tokenizer are trained as the numbers they were there",
    "B13": "a model directory asks to run its own code, or its files have no end",
    "C1": "the sampler claims memory that the trainer fills",
    "C2": "out of memory in the backward pass, or by a tensor of tokens × vocabulary",
    "C3": "CPU offload with LoRA: weights and adapter on different devices",
    "C4": "another process holds the GPU's memory",
    "C5": "full fine-tuning of a model that is too large for the GPU",
    "C6": "memory grows with every step",
    "C7": "a forked process inherits a CUDA context and crashes",
    "D1": "parallel episodes share one budget of steps",
    "D2": "Python is checked as if it were shell",
    "D3": "several commands in a reply have the whole reply rejected",
    "D4": "a tool is missing after a reset",
    "D5": "a task has no baseline",
    "D6": "slow tool calls are blamed on the model",
    "D7": "a failed sandbox is scored as reward 0",
    "D8": "the agent reads the answers or writes the score",
    "D9": "a hung command holds the step",
    "D10": "a crash leaves containers and processes behind",
    "D11": "the prompt gives the task's class away, or blind evidence is paid for",
    "D12": "the first action after a change sees the state before it",
    "D13": "a correct answer is marked wrong",
    "D14": "parallel episodes share a workspace",
    "D15": "a crashed attempt is scored by what an earlier one left",
    "D16": "labels are no labels, or are in the agent's sight",
    "D17": "a score above the known optimum is celebrated",
    "D18": "the metric or its direction is guessed",
    "D19": "a way of ending an episode leaves out its reward",
    "D20": "what agents need is missing inside their sandbox, and the rewards are blamed",
    "D21": "a component of the reward pays for doing nothing",
    "D22": "graded code tells the agent's sandbox of hidden instances through locks on shared files",
    "D23": "`validate` is an oracle on hidden labels",
    "D24": "a value that is paid for is read from the agent's own shell",
    "D25": "one agent takes the processor, and its neighbours run out of time",
    "D26": "quotas of the kernel are used up for neighbours and host",
    "D27": "a submission of hundreds of megabytes fills the trainer's memory",
    "D28": "a task's file brings files of the host into the agent's sandbox",
    "E1": "no reward flows at all: the loss is 0 for a whole run",
    "E2": "all episodes of a group score the same",
    "E3": "an error in a reward is swallowed and counts as 0",
    "E4": "components of the reward cancel",
    "E5": "tasks sorted by difficulty make a curve that looks like learning",
    "E6": "unequal rows, modes or samplings are compared",
    "E7": "lengths or entropy run away before the score falls",
    "E8": "slow and hard tasks are dropped: a bias to fast ones",
    "E9": "thresholds give nearly all episodes the same reward",
    "E10": "success falls while the reward does not: another component pays",
    "E11": "the policy learns to do nothing: reward rises, success never comes",
    "E12": "with few tasks, chance is called progress",
    "F1": "the training forward cannot see the prompt or the tools' answers",
    "F2": "the engine goes on sampling other weights than are trained",
    "F3": "the loss counts tokens that were not sampled",
    "F4": "the KL term explodes",
    "F5": "gradients flow and the weights do not change",
    "F6": "log-probs of the sampler are missing when a batch is used twice",
    "F7": "the log-probs of trainer and sampler drift apart",
    "F8": "a proof refuses healthy runs: its own perturbation makes the network amplify rounding",
    "F9": "gradients of micro-batches are added up in bf16",
    "F10": "an adapter of another kind is loaded and computed as plain LoRA",
    "G1": "a stall whose reason is in another process's log",
    "G2": "a checkpoint lacks what is needed to go on alike",
    "G3": "the exported model is the untrained one",
    "G4": "the disk is full at a checkpoint",
    "G5": "episodes that ended in an unusual way are lost",
    "G6": "an episode is recorded under the policy of when it was saved",
    "G7": "the inference process dies and nobody notices",
    "G8": "two episodes get the same file name",
    "G9": "every rollout fails while the environment's log looks healthy",
    "G10": "a slow or busy machine is taken for a broken one: a deadline that was chosen elsewhere ends good work",
    "G11": "minutes without a word: nobody can tell a long phase from a hang",
    "G12": "a poisoned step is repeated for ever: resumed, the run stops at the same token",
    "G13": "a step that has no group left ends the run, and again when it is resumed",
    "G14": "a forecast from cold kernels: hours for a run of a minute",
    "G15": "to resume somebody else's run runs their code",
    "G16": "half-sent requests stop the viewer, or one hostile run takes gigabytes",
}

# What makes the failure impossible, or is done about it outside of checks and watches, and the test
# that proves it, wherever it is.
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
}
