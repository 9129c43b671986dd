"""What TensorBoard says of each curve, and which it puts together in CUSTOM SCALARS."""
import re
from functools import cache

# category -> chart -> what tags it shows, as patterns from the tag's beginning.
LAYOUT = {
    "Training": {
        "Loss of training and of held-out text (nats a token)": ["train/loss$", "valid_all/loss$"],
        "Gradient norm before clipping": ["train/grad_norm$"],
        "Learning rate": ["train/learning_rate$"],
        "Loss scale": ["train/loss_scale$"]},
    "Speed": {
        "Throughput of all ranks (tokens a second)": ["speed/tokens_per_second$"],
        "Data wait (share of a step's time)": ["speed/data_wait_fraction$"],
        "Memory of rank 0 (bytes)": ["speed/memory_bytes$"]},
    "Evaluation": {
        "Perplexity of held-out text, per corpus": ["valid_.+/perplexity$"],
        "Next-token accuracy, per corpus (share)": ["valid_.+/accuracy$"],
        "Tasks (share of the questions that is right)": ["tasks/.+"],
        "Texts that the model writes (0 to 1)": ["samples/(distinct_2|repetition_4|self_bleu|empty_rate)$"]},
    "Health": {
        "Loss spikes and steps that are not finite (number)": ["health/(loss_spikes|nonfinite_steps)$"],
        "Steps skipped for an overflow (share)": ["health/overflow_rate$"],
        "Gradient norm, by layer": ["health_grad_norm/.+"],
        "Update-to-weight ratio, by layer": ["health_update_ratio/.+"],
        "Entropy of attention, by layer (share of the largest)": ["health_attention_entropy/.+"]},
}

# (pattern of the whole tag, name with its unit, description); the first that fits. {0} is the pattern's first group.
TEXTS = [
    ("train/loss", "loss (nats a token)", "Mean over the tokens of a step's batch, before the update."),
    ("train/learning_rate", "learning rate", "As the step used it; parameter groups have factors of their own."),
    ("train/grad_norm", "gradient norm (before clipping)", "L2 norm of all gradients together, over the whole mesh, unscaled."),
    ("train/loss_scale", "loss scale (factor)", "The loss is multiplied by it before the backward pass."),
    ("train/overflow", "step skipped (0 or 1)", "1: gradients were not finite, and the step changed no weight."),
    ("speed/tokens_per_second", "throughput (tokens a second)", "Of all ranks together, without evaluation and checkpoints."),
    ("speed/step_seconds", "time of a step (s)", "Mean since the point before, without evaluation and checkpoints."),
    ("speed/data_wait_fraction", "data wait (share)", "Share of the training time that the loop waited for its batch."),
    ("speed/memory_bytes", "memory (bytes)", "What rank 0 holds: on the device, or resident where the host is the device."),
    ("health/loss_mean", "loss, mean of the window (nats a token)", "Over the last steps (health.window)."),
    ("health/loss_std", "loss, spread of the window (nats a token)", "Standard deviation over the same steps."),
    ("health/loss_robust_z", "loss, robust z-score", "Robust standard deviations of the step's loss above the median."),
    ("health/loss_spikes", "loss spikes (number)", "Of the same steps: losses far above the others'."),
    ("health/nonfinite_steps", "steps not finite (number)", "Of the same steps."),
    ("health/overflow_rate", "steps skipped (share)", "Of the window's steps."),
    ("health/learning_rate_of_schedule", "learning rate by the schedule", "What train/learning_rate should be."),
    ("valid_all/loss", "held-out loss, all corpora (nats a token)", "On all held-out text together."),
    ("valid_(.+)/loss", "held-out loss, {0} (nats a token)", "On the held-out text of corpus {0}."),
    ("valid_(.+)/perplexity", "perplexity, {0}", "exp(loss) on held-out text; report.json has a unigram model's."),
    ("valid_(.+)/bits_per_byte", "bits a byte, {0}", "Loss by the text's UTF-8 bytes: does not depend on the tokenizer."),
    ("valid_(.+)/accuracy", "next-token accuracy, {0} (share)", "Share of held-out tokens that the model holds likeliest."),
    ("tasks/(.+)", "task {0} (share right)", "By likelihood; of continuations, for each byte."),
    ("tasks_not_normalised/(.+)", "task {0}, not by bytes (share right)", "The same by the plain sum of log-likelihoods."),
    ("samples/distinct_(.)", "distinct-{0} (share)", "Different {0}-grams in all; low: the texts repeat."),
    ("samples/repetition_4", "repetition (share)", "4-grams that stood in the same text before."),
    ("samples/self_bleu", "self-BLEU (0 to 1)", "How much the texts are like one another; high: no variety."),
    ("samples/empty_rate", "empty texts (share)", "Of all prompts."),
    ("samples/eos_rate", "texts that end by themselves (share)", "Before the longest length."),
    ("samples/length_mean", "length of the texts (tokens)", "Mean."),
    ("samples/own_perplexity", "perplexity of the model's own texts", "Low where it goes round in circles."),
    ("instructions/(.+)", "instructions followed, {0} (share)", "All rules of an item hold, as a program checks them."),
    ("safety/(.+)/(.+)_rate", "safety, {0}: {1} (share)", "Of the items of this kind and language."),
    ("health_grad_norm/(.+)", "gradient norm, {0}", "L2 norm of this layer's gradients, before clipping."),
    ("health_weight_norm/(.+)", "weight norm, {0}", "L2 norm of this layer's weights."),
    ("health_update_ratio/(.+)", "update-to-weight ratio, {0}", "Norm of the step's change by that of the weights."),
    ("health_attention_entropy/(.+)", "entropy of attention, {0} (0 to 1)", "By the largest that it could be; mean over heads."),
    ("health_attention_entropy_min/(.+)", "entropy of attention, {0}, lowest (0 to 1)", "Of the head that has the least."),
    ("health_zeros/(.+)", "zeros among activations, {0} (share)", "On the fixed batch of the probe."),
    ("health_saturated/(.+)", "saturated activations, {0} (share)", "On the fixed batch of the probe."),
    ("health_(mean|std|abs_max)/(.+)", "activations, {0}, {1}", "Of the layer's output, on the fixed batch of the probe."),
    ("profile/share_(.+)", "profile: {0} (share of a step)", "See profile/verdict under TEXT."),
    ("profile/(.+)", "profile: {0}", "See profile/verdict under TEXT."),
]


def about() -> str:
    """All of it as a Markdown table, which stands under TEXT: TensorBoard's fast loader drops what a scalar says of itself."""
    rows = [(re.sub(r"\([^)]*\)", "*", pattern), name.format("*", "*"), description.format("*", "*"))
            for pattern, name, description in TEXTS]
    return "\n".join(["| tag | what | how |", "|---|---|---|", *(f"| `{tag}` | {name} | {how} |" for tag, name, how in rows)])


@cache
def told(tag: str) -> tuple[str, str] | None:
    """(name with its unit, description) of a tag; None: nothing is said of it."""
    for pattern, name, description in TEXTS:
        if found := re.fullmatch(pattern, tag):
            return name.format(*found.groups()), description.format(*found.groups())
    return None
