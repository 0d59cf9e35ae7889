"""Names of models as submitters may write them. A name never says where its model is served: operators do.

litellm reads more into a name than which model it is. `huggingface/https://host/` and `oobabooga/http://host/` name a
server, which is then asked, with the operator's key; the region in an ARN becomes part of a host's name; and what is
left of a name often becomes part of a path. So a name consists of plain words, and where a model of one's own is served
stands in KERNELWRIGHT_LLM_MODELS (`api_base`).
"""

from __future__ import annotations

import re
from typing import Final

MAX_NAME: Final = 200

_PLAIN: Final = re.compile(r"@?[A-Za-z0-9][A-Za-z0-9._:@~+-]*")
_ARN: Final = re.compile(r"arn:aws[a-z-]*:[a-z-]+:[a-z]{2}(-[a-z]+)+-\d{1,2}:\d*:[A-Za-z0-9._:/-]+")


class NotAModelName(ValueError):
    """is no model's name: write provider/model in letters, digits and . _ : @ ~ + -, such as openai/gpt-5; where it is
    served is the operator's to say (KERNELWRIGHT_LLM_MODELS)"""

    def __str__(self) -> str:
        return " ".join(str(self.__doc__).split())


def check_model_name(name: str) -> str:
    """The name, if it names a model and nothing else. Raises NotAModelName."""
    _, arn, rest = name.partition("arn:")
    plain = all(_PLAIN.fullmatch(part) for part in name.split("/")) and ".." not in name
    if len(name) > MAX_NAME or not plain or (arn and not _ARN.fullmatch(arn + rest)):
        raise NotAModelName
    return name
