"""The user's problem: loaded, run with blame, its domains inferred, admitted or refused."""
