"""Stages: machines that transform the events of a reply between the upstream and the client."""
