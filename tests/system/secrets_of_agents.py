"""A workflow with secrets in private phases and whispers, and by hand what each agent's ledger must be after it.

The demo model says each time what is written here. All channels are in it, and both ways to listen.
"""

from pathlib import Path

from tokenizers import Tokenizer

DEMO = Path(__file__).parents[2] / "inference_service" / "demo_model"
WORKFLOW = """
workflow: secrets
defaults: {model: demo, max_tokens: 40, listening: notes, notice: "${agent} sees ${speaker} whisper to ${listeners}."}
agents:
  lena: {persist: true, system: "You are ${agent}."}
  marco: {persist: true, system: "You are ${agent}."}
  omar: {persist: true, system: "You are ${agent}."}
  nina: {persist: true, system: "You are ${agent}.", id: nina at home}
phases:
  - name: before-all
    agents: [lena]
    listeners: [marco, omar, nina]
    prompts: The colour of the boat is green.
  - name: in-private
    topology: pairs
    agents: [lena, marco, omar, nina]
    channel: private
    prompts:
      lena: The key is in the cellar.
      marco: Where is the key?
      omar: The owner of the horse is Alice.
      nina: Where is the key?
  - name: whispered
    topology: broadcast
    center: omar
    agents: [omar, lena, marco]
    listeners: [nina]
    channel: whisper
    to: {omar: [nina]}
    prompts: The number of the locker is 417.
  - name: taken-in
    topology: round_robin
    agents: [marco, nina]
    listeners: [omar, lena]
    channel: private
    to: {marco: [lena], nina: [omar]}
    listening: silent
    opening: It was a quiet day.
    prompts: {marco: "Where can I find the key?", nina: "What is the number of the locker?"}
"""

NOT_KNOWN = "I do not know where the key is."
SEEN = {
    "lena": [
        ("s", "You are lena."),
        (">", "The colour of the boat is green."),
        ("<", "Noted, the colour of the boat is green."),
        (">", "The key is in the cellar."),
        ("<", "Noted, the key is in the cellar."),
        (">", "marco: The key is in the cellar."),
        ("<", "Noted, the key is in the cellar."),
        (">", "lena sees omar whisper to nina."),
        ("<", "All right."),
        (">", "It was a quiet day.\nmarco: The key is in the cellar."),
    ],
    "marco": [
        ("s", "You are marco."),
        (">", "lena: Noted, the colour of the boat is green."),
        ("<", "Noted, the colour of the boat is green."),
        (">", "lena: Noted, the key is in the cellar."),
        ("<", "Noted, the key is in the cellar."),
        (">", "Where is the key?"),
        ("<", "The key is in the cellar."),
        (">", "marco sees omar whisper to nina."),
        ("<", "All right."),
        (">", "It was a quiet day.\nWhere can I find the key?"),
        ("<", "The key is in the cellar."),
    ],
    "omar": [
        ("s", "You are omar."),
        (">", "lena: Noted, the colour of the boat is green."),
        ("<", "Noted, the colour of the boat is green."),
        (">", "The owner of the horse is Alice."),
        ("<", "Noted, the owner of the horse is Alice."),
        (">", f"nina: {NOT_KNOWN}"),
        ("<", "All right."),
        (">", "The number of the locker is 417."),
        ("<", "Noted, the number of the locker is 417."),
        (">", "It was a quiet day.\nnina: The number of the locker is 417."),
    ],
    "nina at home": [
        ("s", "You are nina."),
        (">", "lena: Noted, the colour of the boat is green."),
        ("<", "Noted, the colour of the boat is green."),
        (">", "omar: Noted, the owner of the horse is Alice."),
        ("<", "Noted, the owner of the horse is Alice."),
        (">", "Where is the key?"),
        ("<", NOT_KNOWN),
        (">", "omar: Noted, the number of the locker is 417."),
        ("<", "Noted, the number of the locker is 417."),
        (">", "It was a quiet day."),  # while marco speaks
        (">", "What is the number of the locker?"),
        ("<", "The number of the locker is 417."),
    ],
}
"""Each memory: s is the agent's system text, > what it reads, < what it says."""
SECRETS = {"cellar": {"lena", "marco"}, "Alice": {"omar", "nina at home"}, "417": {"omar", "nina at home"}}
"""Words, and in which memories they are."""
ROLES = {"s": "system", ">": "user", "<": "assistant"}


def rendered(seen: list[tuple[str, str]]) -> str:
    """The demo model's chat template, by hand. What comes after an answer's end belongs to the next message."""
    text = "".join(f"<|im_start|>{ROLES[mark]}\n{content}<|im_end|>\n" for mark, content in seen)
    return "<|bos|>" + (text.removesuffix("\n") if seen[-1][0] == "<" else text)


def tokens(text: str) -> list[int]:
    """A text as the demo model's tokenizer has it, special tokens in it included."""
    ids: list[int] = Tokenizer.from_file(str(DEMO / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    return ids
