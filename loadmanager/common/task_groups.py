import asyncio


def raise_if_cancelled() -> None:
    """Continue a cancellation that coincided with an error.

    A `TaskGroup` that is cancelled while a task of it fails raises the failure alone. Raises
    `CancelledError`: this task is being cancelled.
    """
    task = asyncio.current_task()
    if task and task.cancelling():
        raise asyncio.CancelledError


def leaves(group: BaseExceptionGroup[Exception]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def first_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
