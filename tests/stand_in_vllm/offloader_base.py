"""One offloader for the process, as vLLM keeps it."""


class NoopOffloader:
    def wrap_modules(self, modules):
        return list(modules)

    def post_init(self):
        """Nothing is away."""


_instance = NoopOffloader()


def should_pin_memory():
    return False


def get_offloader():
    return _instance


def set_offloader(instance):
    global _instance  # noqa: PLW0603
    _instance = NoopOffloader() if instance is None else instance
