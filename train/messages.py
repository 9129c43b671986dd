"""What a training run says on the console, in English and in Chinese: its header, compiling, the lines of steps and of
evaluation, and the summary. All else is in English alone: notes, health rules, errors, other commands' output.

The language is that of run.language; `auto` goes by LC_ALL, LC_MESSAGES and LANG, the first of them that is set. Where a text is
missing, or the console cannot show Chinese, it is English.
"""
import os
import sys

LANGUAGES = ("en", "zh")

TEXTS: dict[str, dict[str, str]] = {
    # The header's names and values.
    "run": {"en": "run", "zh": "运行"},
    "model": {"en": "model", "zh": "模型"},
    "mesh": {"en": "mesh", "zh": "网格"},
    "data": {"en": "data", "zh": "数据"},
    "batch": {"en": "batch", "zh": "批次"},
    "steps": {"en": "steps", "zh": "步数"},
    "precision": {"en": "precision", "zh": "精度"},
    "group": {"en": "group", "zh": "参数组"},
    "note": {"en": "note", "zh": "注意"},
    "model.value": {
        "en": "{millions:.2f}M parameters: {layers} layers, hidden {hidden}, {heads} heads, vocab {vocab}",
        "zh": "{millions:.2f}M 参数：{layers} 层，隐藏维度 {hidden}，{heads} 个注意力头，词表 {vocab}"},
    "mesh.value": {"en": "{mesh}  ({ranks} rank(s), {device}, {machine})",
                   "zh": "{mesh}（{ranks} 个 rank，{device}，{machine}）"},
    "data.value": {"en": "{tokens:,} tokens in {samples:,} samples of {length}",
                   "zh": "{tokens:,} 个 token，{samples:,} 个样本，每个长 {length}"},
    "batch.value": {"en": "{tokens:,} tokens a step: {samples} samples = dp {dp} x micro-batch {micro} x {count}",
                    "zh": "每步 {tokens:,} 个 token：{samples} 个样本 = dp {dp} x 微批次 {micro} x {count}"},
    "steps.value": {"en": "{first} -> {last} of {total}  ({epochs:.2f} epochs in all)",
                    "zh": "{first} -> {last}，共 {total}（总计 {epochs:.2f} 轮）"},
    "precision.value": {"en": "{formats}; loss scale {initial:g}", "zh": "{formats}；损失缩放 {initial:g}"},
    "precision.dynamic": {"en": "{formats}; loss scale dynamic from {initial:g}",
                          "zh": "{formats}；动态损失缩放，从 {initial:g} 起"},
    # Before, between and after the steps.
    "outputs": {"en": "outputs at step 0 (standard deviation): {shown}", "zh": "第 0 步的输出（标准差）：{shown}"},
    "compiling": {"en": "compiling the training step and the evaluation ...", "zh": "正在编译训练步和评估的计算图……"},
    "compiling.again": {"en": "compiling the training step and the evaluation (last time: {last}) ...",
                        "zh": "正在编译训练步和评估的计算图（上次用时 {last}）……"},
    "compiled": {"en": "compiled, and the first step done, in {seconds}", "zh": "编译和第一步用时 {seconds}"},
    "nothing_to_do": {"en": "nothing to do: {folder} is at step {step} of {total} already",
                      "zh": "无事可做：{folder} 已在第 {step} 步，共 {total} 步"},
    "interrupted": {"en": "interrupted: step {step} is saved; the same command goes on from there",
                    "zh": "已中断：第 {step} 步已保存；用同一命令从该处继续"},
    # The columns of the lines of steps, at most as wide as train.console.WIDTHS says.
    "column.step": {"en": "step", "zh": "步"},
    "column.done": {"en": "done", "zh": "进度"},
    "column.loss": {"en": "loss", "zh": "损失"},
    "column.lr": {"en": "lr", "zh": "学习率"},
    "column.grad_norm": {"en": "g.norm", "zh": "梯度范数"},
    "column.loss_scale": {"en": "scale", "zh": "缩放"},
    "column.speed": {"en": "tok/s", "zh": "tok/秒"},
    "column.wait": {"en": "wait", "zh": "等待"},
    "column.memory": {"en": "mem", "zh": "内存"},
    "column.eta": {"en": "eta", "zh": "剩余"},
    "skipped": {"en": "{count} step(s) skipped: gradients not finite", "zh": "跳过 {count} 步：梯度不是有限数"},
    # The tiers.
    "valid": {"en": "valid  loss {loss:.4f}  perplexity {perplexity:.1f} ({parts})  accuracy {accuracy:.1%}",
              "zh": "验证  损失 {loss:.4f}  困惑度 {perplexity:.1f}（{parts}）  准确率 {accuracy:.1%}"},
    "valid.share": {"en": "  ({share:.0%} of the text: time budget)", "zh": "  （时间预算：{share:.0%} 的文本）"},
    "valid.none": {"en": "stage  not computed, the time budget allows none of the text now",
                   "zh": "验证  未计算：时间预算目前不够评估任何文本"},
    "task": {"en": "task   {name}: {score:.1%} of {questions} (guessing: {baseline:.1%})",
             "zh": "任务  {name}：{questions} 题中 {score:.1%}（随机猜测：{baseline:.1%}）"},
    "task.cloze": {"en": "task   {name}: {score:.1%} of {questions} (always the most frequent: {baseline:.1%})",
                   "zh": "任务  {name}：{questions} 题中 {score:.1%}（总取最常见答案：{baseline:.1%}）"},
    "texts": {"en": "texts  {figures}; {empty:.0%} empty", "zh": "文本  {figures}；空文本 {empty:.0%}"},
    "text": {"en": "text   {prompt} | {text}", "zh": "文本  {prompt} | {text}"},
    "instructions": {"en": "instructions  {items:.1%} of {count} followed, {rules:.1%} of their rules",
                     "zh": "指令  {count} 条中遵循 {items:.1%}，规则满足 {rules:.1%}"},
    "safety": {"en": "safety  {items} items: {failed} failed, {unclear} unclear (no refusal, no help), {empty} empty",
               "zh": "安全  {items} 题：{failed} 题未通过，{unclear} 题不明（既未拒绝也未帮助），{empty} 题为空"},
    # The summary.
    "done": {"en": "done: {steps} of {total} steps; trained {seconds}, start-up {compiling}",
             "zh": "完成：{steps} / {total} 步；本次训练 {seconds}，启动 {compiling}"},
    "done.speed": {"en": ", {speed} tokens/s", "zh": "，{speed} tokens/s"},
    "done.validation": {"en": "validation", "zh": "验证"},
    "done.validation.value": {
        "en": "loss {loss:.4f}, perplexity {perplexity:.1f}, accuracy {accuracy:.1%}{at}  (unigram {unigram:.0f})",
        "zh": "损失 {loss:.4f}，困惑度 {perplexity:.1f}，准确率 {accuracy:.1%}{at}（unigram {unigram:.0f}）"},
    "done.at": {"en": " at step {step}", "zh": "（第 {step} 步）"},
    "done.time": {"en": "time", "zh": "时间"},
    "done.time.value": {
        "en": "evaluation {evaluation:.1%}, health {health:.1%}, data wait {data:.1%}, checkpoints {checkpoints:.1%}",
        "zh": "评估 {evaluation:.1%}，健康检查 {health:.1%}，等待数据 {data:.1%}，检查点 {checkpoints:.1%}"},
    "done.memory": {"en": "memory", "zh": "内存"},
    "done.memory.value": {"en": "at most {gib:.2f} GiB on each of {ranks} rank(s)",
                          "zh": "{ranks} 个 rank 各自至多 {gib:.2f} GiB"},
    "done.written": {"en": "written to", "zh": "写入"},
    "done.look": {"en": "look", "zh": "查看"},
}

_chosen = "auto"


def use(language: str) -> None:
    """What run.language says: auto, en or zh."""
    global _chosen
    _chosen = language


def language() -> str:
    """en or zh."""
    chosen = _chosen
    if chosen == "auto":
        locale = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
        chosen = "zh" if locale.lower().startswith("zh") else "en"
    return chosen if chosen == "en" or _shows_chinese() else "en"


def _shows_chinese() -> bool:
    try:
        "中".encode(sys.stdout.encoding or "ascii")
        return True
    except UnicodeError:
        return False


def message(key: str, **values) -> str:
    """A text in the language, with its values."""
    texts = TEXTS[key]
    return texts.get(language(), texts["en"]).format(**values)
