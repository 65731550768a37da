-- A job_submit.lua that only sends slicewise.lua's question to an echo server, over one kept
-- connection, and decodes the reply. It decides nothing.
local cjson = require "cjson"
local unix = require "socket.unix"

local question = cjson.decode([==[@QUESTION@]==])
local connection = unix.stream()
connection:settimeout(1)
assert(connection:connect("@SOCKET@"))

function slurm_job_submit(job_desc, part_list, submit_uid)
    question.uid = submit_uid
    connection:send(cjson.encode(question) .. "\n")
    local answer = cjson.decode((connection:receive("*l")))
    if answer.uid == submit_uid and job_desc.name == "which" then
        job_desc.admin_comment = "echo"
    end
    return slurm.SUCCESS
end

function slurm_job_modify()
    return slurm.SUCCESS
end

return slurm.SUCCESS
