import os

# The tests themselves run on the CPU, where torch would look for the CANN of an installed torch-npu in vain.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
