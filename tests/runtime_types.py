"""The run-time check of annotations, read as type checkers read them: an int will do where a float is asked for."""

from beartype import BeartypeConf, beartype

check_types = beartype(conf=BeartypeConf(is_pep484_tower=True))
