"""The demo model's tokenizer: byte-level BPE, so that any text round-trips, with every word of the world one token.

python -m benchmarks.demo_model.tokenizer OUTPUT_DIRECTORY
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.demo_model import filler
from benchmarks.demo_model.dialogues import Message, make_dialogue
from benchmarks.demo_model.world import KINDS

VOCABULARY = 3072
CONTEXT = 8192
BOS, START, END, PAD = "<|bos|>", "<|im_start|>", "<|im_end|>", "<|pad|>"
SPECIAL_TOKENS = (BOS, START, END, PAD)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

COMMON_WORDS = """a able about above across act add after again against age ago agree air all allow almost alone along
already also although always am among an and animal another answer any anything appear are area arm around arrive art as
ask at away back bad be beautiful became because become bed been before began begin behind believe below best better
between big bit body book both box boy bring build building business but buy by call came can cannot care carry case
catch cause centre certain change check child choose city class clear close code cold come common company complete
computer condition consider contain continue control cook cool cost could country course create cross cut data date
daughter day dead deal dear death decide deep describe design did die difference different difficult do does dog done
down draw drive drop during each early earth ease east eat effect eight either else end energy enough enter even event
ever every example except expect experience explain eye face fact fall far fast father fear feel few field fight figure
file fill final find fine finish fire first fish five fly follow food foot for force form found four free friend from
front full function game gave general get girl give given go good great ground group grow had half hand happen happy
hard has have he head hear heart heavy help her here high him his history hold home hope hot hour how however human
hundred hurt i idea if important in include increase inside instead interest into is it its job just keep kind king
know large last late later laugh law lead learn least leave left less let level life light like line list listen
little live local long look lose love low machine made main make man many mark may me mean measure memory men might mind
minute miss model modern moment money month moon more most mother move much music must my name near need never new next
night no north not note nothing now number of off often old on once one only open or order other our out over own paper
part pass past pay people perhaps person picture place plan plant play point poor possible power present problem produce
public pull put question quick quite rain read real reason red remember rest result return right rise road rock round
rule run said same saw say school science second see seem sell send sentence set seven several shall she short should
show side sign simple since sing sit six size sleep slow small so some something song soon sort sound south space speak
special stand star start state stay step still stop street strong study such sun sure system take talk tell ten test
than that the their them then there these they thing think this those though thought thousand three through time to
today together told too took top total toward town tree true try turn two type under understand unit until up us use
user usual very voice wait walk wall want war warm was watch water way we week well went were west what when where
which while who whole why will wind with woman wonder word work world would write wrong year yes yet you young your"""
"""Plain English from outside the world, so that other text doesn't fall to single letters."""


def render(messages: list[Message]) -> str:
    """Render as the chat template does, without Jinja: training renders some ten thousand dialogues a second."""
    return BOS + "".join(f"{START}{message['role']}\n{message['content']}{END}\n" for message in messages)


def _corpus() -> Iterator[str]:
    words = {word for kind in KINDS for word in (*kind.entities, *kind.values)}
    for part in (filler.SUBJECTS, filler.VERBS, filler.TOPICS, filler.TIMES, filler.REMARKS):
        words.update(word.strip(".,") for phrase in part for word in phrase.split())
    text = " " + " ".join(sorted(words))
    for _ in range(200):
        yield text
        yield "\n".join((*filler.SUBJECTS, *filler.REMARKS, *filler.SMALL_TALK, *filler.SMALL_TALK.values()))
    for seed in range(400):
        yield "\n".join(message["content"] for message in make_dialogue(seed, 1024, split="train").messages)
        yield "system\nuser\nassistant\n" * 10
    for _ in range(20):
        yield COMMON_WORDS


def train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def write_tokenizer(directory: Path) -> Tokenizer:
    """Train the tokenizer and write it with its configuration and chat template."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {"bos_token": BOS, "eos_token": END, "pad_token": PAD}
    config = {
        **named,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for token in SPECIAL_TOKENS
        },
        "additional_special_tokens": [START],
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    write_json(directory / "tokenizer_config.json", config)
    write_json(directory / "special_tokens_map.json", {**named, "additional_special_tokens": [START]})
    return tokenizer


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train the demo model's tokenizer.")
    parser.add_argument("directory", type=Path)
    print(write_tokenizer(parser.parse_args().directory).get_vocab_size(), "tokens")
