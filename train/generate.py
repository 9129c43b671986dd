"""python -m model.generate: continue texts by a checkpoint's model."""
import argparse
import sys
from pathlib import Path

from parallel.errors import UserError


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m model.generate", description=__doc__.partition(": ")[2],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="D", help="a checkpoint's folder, or a run's")
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="a text to continue (repeatable); else asks for it")
    parser.add_argument("--max-new-tokens", type=int, default=100, metavar="N", help="tokens written for each prompt")
    parser.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest token")
    parser.add_argument("--top-k", type=int, default=40, help="draw among the k likeliest tokens; 0: among all")
    parser.add_argument("--top-p", type=float, default=1.0, help="draw among the likeliest that have this probability")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, help="of tokens in the text already")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers")
    parser.add_argument("--set", dest="overrides", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="other settings")
    options = parser.parse_args(arguments)
    try:
        if options.max_new_tokens < 1:
            raise UserError(f"--max-new-tokens {options.max_new_tokens}: give 1 or more")
        if not 0 <= options.seed < 2**32:
            raise UserError(f"--seed {options.seed}: give a number from 0 to {2**32 - 1}")
        for prompt in options.prompt or ():
            check_prompt(prompt)
        generate(options)
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def generate(options: argparse.Namespace) -> None:
    """Print each text as it comes."""
    # Late, so that a refusal does not wait for MindSpore.
    from data.tokenizer import EOS_ID
    from model.detokenizer import Detokenizer
    from model.sampling import Sampling
    from model.writer import Writer
    from train.evaluation import open_model

    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.repetition_penalty)
    config, gpt, tokenizer = open_model(options.checkpoint, options.overrides)
    print("the first token waits for the model to be compiled ...", file=sys.stderr, flush=True)
    writer = Writer(gpt, 1, config.model.seq_length, EOS_ID)
    for prompt in options.prompt if options.prompt is not None else asked():
        shown = Detokenizer(tokenizer.decode)
        print(prompt, end="", flush=True)
        try:
            for token in writer.stream(tokenizer.encode(prompt), options.max_new_tokens, sampling, options.seed):
                print(shown.push(token), end="", flush=True)
        except FloatingPointError as error:
            print(shown.finish(), flush=True)
            raise UserError(f"{options.checkpoint}: {error}, so the text cannot go on: its weights are broken") from None
        print(shown.finish(), flush=True)


def check_prompt(prompt: str) -> None:
    """Raises UserError: bytes that are no UTF-8, which Python keeps as lone surrogates."""
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"the prompt {prompt!a} is not UTF-8 at character {error.start + 1}; give it in UTF-8") from None


def asked():
    """Prompts from the terminal, until an empty line or the end of the input. Raises UserError: one is not UTF-8."""
    while True:
        try:
            prompt = input("prompt (empty to end)> ")
        except EOFError:
            return
        except UnicodeDecodeError as error:
            raise UserError(f"the prompt is not UTF-8 ({error}); give it in UTF-8") from None
        if not prompt:
            return
        check_prompt(prompt)
        yield prompt
