"""``python3 -m nightshift.driver.copy_model REPOSITORY COMMIT FOLDER``: a model of the Hub into a bucket, once.

The Job of ``nightshift render --copy-model`` runs it. HF_TOKEN, HF_ENDPOINT: as the Hub's own clients read them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from obstore.exceptions import BaseError

from nightshift import exits
from nightshift.driver.json_log import log_to_stdout
from nightshift.run.models.hub_revision import HubFile, HubUnavailable, NoSuchRevision
from nightshift.run.models.model_copy import OtherFile, copy
from nightshift.store import first_words, open_folder, what_to_do

log = logging.getLogger("nightshift.copy_model")


def main(arguments: Sequence[str]) -> int:
    """Returns 0 if the whole model is there, 78 if not retryable, and 75 if it may."""
    repository, commit, url = arguments
    bucket, _, folder = url.removeprefix("gs://").partition("/")
    try:
        size = copy(repository, commit, open_folder(bucket, folder), os.environ, _told)
    except (NoSuchRevision, OtherFile) as error:
        log.error("cannot continue", extra={"fields": {"error": str(error)}})
        return exits.CONFIG
    except (HubUnavailable, BaseError, OSError) as error:
        remedy = what_to_do(error)
        said = f"{first_words(error)}{f'. {remedy}' if remedy else ''}"
        log.error("stopping, to be resumed", extra={"fields": {"error": said}})
        return exits.CONFIG if remedy else exits.RESUME
    log.info("the model is there", extra={"fields": {"folder": url, "bytes": size}})
    return exits.DONE


def _told(file: HubFile, copied: bool) -> None:
    log.info("copied" if copied else "was there", extra={"fields": {"file": file.name, "bytes": file.size}})


if __name__ == "__main__":
    log_to_stdout()
    exits.on_signals(exits.RESUME)
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # As the driver ends, and for its reason.
    os._exit(code)
