"""Names of prefix groups; apart from the Scenario's model, so that checking files need not load it."""


def group_name(group: int) -> str:
    """The public id of a group: ``group-0`` …"""
    return f"group-{group}"
