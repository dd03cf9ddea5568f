"""One hundred pairs whose explanations stay within a stated tolerance: the promise on numbers of docs/policy.md."""
