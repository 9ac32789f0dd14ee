"""Few causes of many bad messages: what bad units share and good units of the same time do not.

    symptoms    codes and measures that one cause produces together
    cases       messages, and messages in groups, as units with dimensions
    episodes    times in which a symptom is more frequent than usual
    contrast    the search for the smallest set of conditions
    neighbours  changes of clients, brokers and offsets beside an episode
    causes      names, the evidence that each needs, and advice; facts computes that evidence

The SQL is run by a function that the caller passes, so this room has no engine in it either.
"""

from .cases import error_text
from .causes import BY_NAME as INCIDENT_CAUSES
from .causes import NO_SINGLE_CAUSE, IncidentCause
from .find import APART_MS, find_incidents
from .incident import INCIDENTS, Incident
from .settings import IncidentSettings
from .symptoms import BAD_CODES, SYMPTOMS, Symptom

__all__ = [
    "APART_MS",
    "BAD_CODES",
    "INCIDENTS",
    "INCIDENT_CAUSES",
    "NO_SINGLE_CAUSE",
    "SYMPTOMS",
    "Incident",
    "IncidentCause",
    "IncidentSettings",
    "Symptom",
    "error_text",
    "find_incidents",
]
