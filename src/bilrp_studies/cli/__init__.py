"""Commands that the studies add to the command line: `bilrp study` and `bilrp bench`. Imports bilrp and bilrp_studies."""
